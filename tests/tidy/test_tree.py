"""Rules about the tree: it has no paths of one machine, and no test sleeps."""

import ast
import re

import pytest

from tests.tidy.sources import offenders, tracked

# The pattern is written so that it does not match itself.
MACHINE = re.compile(
    r"(?:^|[^A-Za-z0-9_./-])/(?:wor[k]|far[m]|roo[t]|hom[e])/"
    r"|(?:py[p]i|files\.python[h]osted|deb\.[d]ebian|registry\.[n]pmjs|repo1?\.[m]aven"
    r"|proxy\.[g]olang|static\.[c]rates)\.?(?:org|io|apache\.org)?/"
)

PLAIN = tracked("*.py", "*.toml", "*.md", "*.xml", "*.java", "*.yml", "*.cfg", "Makefile", ".ci/*")
TESTS = [name for name in tracked("tests/*.py") if not name.startswith("tests/kit/")]
"""Test modules. The kit may sleep: it waits in virtual time, or is a separate program."""
ASLEEP = {("time", "sleep"), ("asyncio", "sleep")}


def of_a_machine(source: str) -> list[str]:
    return [line for line in source.splitlines() if MACHINE.search(line)]


def sleeps(source: str) -> list[str]:
    """Return the lines on which a test sleeps."""
    return [
        f"line {node.lineno}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr) in ASLEEP
    ]


def test_the_tree_has_no_path_of_a_machine_and_no_registry_address() -> None:
    assert offenders(PLAIN, of_a_machine) == []


def test_no_test_sleeps_to_wait() -> None:
    assert offenders(TESTS, sleeps) == [], "wait for an event, with a deadline"


@pytest.mark.parametrize("parts", [("cd /wo", "rk/x"), ('"/ro', 'ot/x"'), ("//py", "pi.org/x")])
def test_the_rule_finds_a_machine(parts: tuple[str, str]) -> None:
    assert of_a_machine("".join(parts))


def test_the_rules_find_machine_paths_and_sleeps() -> None:
    assert of_a_machine("see the docs/work/notes") == []
    assert sleeps("import time\ntime.sleep(1)\n") == ["line 2"]
    assert sleeps("async def f():\n    await asyncio.sleep(0.1)\n") == ["line 2"]
    assert sleeps("clock.sleep(1)\n") == []

"""Rules about the tree: nothing of one machine in it, a test module for every module."""

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.tidy.sources import text, tracked

# Spelled so that this file does not match itself.
MACHINE = re.compile(
    r"(?:^|[^A-Za-z0-9_./-])/(?:wor[k]|far[m]|roo[t]|hom[e])/"
    r"|(?:py[p]i|files\.python[h]osted|deb\.[d]ebian|registry\.[n]pmjs|repo1?\.[m]aven"
    r"|proxy\.[g]olang|static\.[c]rates)\.?(?:org|io|apache\.org)?/"
)

# Modules that have no test module of their own, and where they are tested instead.
TESTED_ELSEWHERE = {
    "broker/storage/ports.py": "declares ports; every implementation runs tests/contract",
    "broker/storage/cells.py": "declares a port; every implementation runs tests/contract",
    "broker/wire/schemas.py": "texts; every codec test parses with them",
}
# Whole folders, likewise.
FOLDERS_TESTED_ELSEWHERE = {
    "broker/testing/contract/": "suites; tests/contract runs them, the wrong store included",
    "broker/testing/servers/": "real servers; tests/integration starts each of them",
}

# Written before their tests; to be emptied, never to be added to.
NOT_YET = (
    "broker/api/",
    "broker/cli/",
    "broker/client/",
    "broker/clock.py",
    "broker/leading/",
    "broker/model.py",
    "broker/node.py",
    "broker/storage/",
    "broker/testing/",
    "broker/topics/",
)

PLAIN = tracked("*.py", "*.toml", "*.md", "*.xml", "*.java", "*.yml", "*.cfg", "Makefile", ".ci/*")
TESTS = tracked("tests/*.py")
ASLEEP = {("time", "sleep"), ("asyncio", "sleep")}


def of_a_machine(source: str) -> list[str]:
    return [line for line in source.splitlines() if MACHINE.search(line)]


def sleeps(source: str) -> list[int]:
    """Return the lines on which a test waits for time to pass."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr) in ASLEEP
    ]


def own_test_module(name: str) -> str:
    path = PurePosixPath(name)
    inner = PurePosixPath(*path.parts[1:-1])
    return str("tests/unit" / inner / f"test_{path.name}")


@pytest.mark.parametrize("name", PLAIN)
def test_no_path_of_a_machine_and_no_registry_address(name: str) -> None:
    assert of_a_machine(text(name)) == []


@pytest.mark.parametrize("name", TESTS)
def test_no_test_sleeps_to_wait(name: str) -> None:
    assert sleeps(text(name)) == [], "wait for an event, with a deadline"


@pytest.mark.parametrize("name", tracked("broker/*.py"))
def test_a_module_has_its_test_module(name: str) -> None:
    exempt = name in TESTED_ELSEWHERE or name.startswith((*FOLDERS_TESTED_ELSEWHERE, *NOT_YET))
    is_private = PurePosixPath(name).name.startswith("__")
    assert exempt or is_private or own_test_module(name) in TESTS, f"write {own_test_module(name)}"


@pytest.mark.parametrize("parts", [("cd /wo", "rk/x"), ('"/ro', 'ot/x"'), ("//py", "pi.org/x")])
def test_the_rule_finds_a_machine(parts: tuple[str, str]) -> None:
    assert of_a_machine("".join(parts))


def test_the_rules_find_what_they_forbid() -> None:
    assert of_a_machine("see the docs/work/notes") == []
    assert sleeps("import time\ntime.sleep(1)\n") == [2]
    assert sleeps("async def f():\n    await asyncio.sleep(0.1)\n") == [2]
    assert sleeps("clock.sleep(1)\n") == []
    assert own_test_module("broker/storage/keys.py") == "tests/unit/storage/test_keys.py"

"""Rules about the shape of the code that no off-the-shelf linter states."""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.sources import offenders, text, tracked

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
FILE_LINES_ASKED = 400

# Why these are longer than a file should be. Each is asked again whenever it grows.
LONG = {
    "broker/client/aio.py": "all that a client writes, in one class, half of it contracts",
    "broker/api/openapi.py": "one entry for each operation of the interface",
    "broker/client/protocol.py": "one function for each request and each answer of the interface",
    "broker/http/inbound.py": "the states of one connection and every way from one to another",
    "broker/config/sections.py": "every key with its bounds, and which of them contradict each other",
    "broker/node/node.py": "all parts of a node, begun in one order and ended in another",
    "broker/rowlog/rowlog.py": "all that an application calls, half of it contracts",
    "broker/storage/entry.py": "the value of one cell, from messages and back",
    "broker/storage/log_reader.py": "one reader, forwards and backwards, by the same rules",
    "tests/kit/contract/log.py": "one suite, read from top to bottom",
    "tests/kit/logs/node.py": "all that a node of the random runs does, one program after the other",
    "broker/testing/mutants.py": "one list, a function for each clause",
    "broker/topics/leaders.py": "every way from one leader of a topic to the next",
    "broker/topics/topics.py": "all that the interface calls, half of it contracts",
    "tests/kit/contract/table.py": "one suite, read from top to bottom",
}

SOURCES = tracked(
    "broker/*.py",
    "scripts/*.py",
    "examples/*.py",
    "benchmarks/*.py",
    "chaos/*.py",
    "tests/kit/*.py",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Count the lines of a function without its docstring."""
    end = function.end_lineno or function.lineno
    docstring = ast.get_docstring(function, clean=False)
    return end - function.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def too_long(source: str) -> list[str]:
    """Name what is too long in a file."""
    long = [
        f"function {function.name} has {body_lines(function)} lines"
        for function in functions(ast.parse(source))
        if body_lines(function) > FUNCTION_LINES_MAX
    ]
    lines = source.count("\n")
    return [*long, f"the file has {lines} lines"] if lines > FILE_LINES_MAX else long


def without_docstring(source: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(source)) else ["it has no docstring"]


def long_without_reason(names: Iterable[str]) -> list[str]:
    return [
        f"{name}: {lines} lines: split it, or say why not"
        for name in names
        if (lines := text(name).count("\n")) > FILE_LINES_ASKED and not LONG.get(name)
    ]


def test_files_and_their_functions_fit() -> None:
    assert offenders(SOURCES, too_long) == []


def test_a_long_file_has_a_reason() -> None:
    assert long_without_reason(SOURCES) == []


def test_a_module_says_why_it_exists() -> None:
    assert offenders(tracked("broker/*.py"), without_docstring) == []


def test_the_rules_find_what_is_too_long() -> None:
    body = "    x = 1\n"
    fits = f'def f():\n    """A\n\n    b.\n    """\n{body * (FUNCTION_LINES_MAX - 1)}'
    assert too_long(fits) == []
    assert too_long(fits + body) == [f"function f has {FUNCTION_LINES_MAX + 1} lines"]
    assert too_long("x = 1\n" * (FILE_LINES_MAX + 1)) == ["the file has 601 lines"]
    assert offenders(["broker/config/sections.py"], lambda source: ["a", "b"]) == [
        "broker/config/sections.py: a",
        "broker/config/sections.py: b",
    ]
    assert without_docstring("x = 1\n") == ["it has no docstring"]
    assert without_docstring('"""Why."""\n') == []

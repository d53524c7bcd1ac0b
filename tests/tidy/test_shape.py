"""Rules about the shape of the code that no off-the-shelf linter states."""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.sources import offenders, text, tracked

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
FILE_LINES_ASKED = 400

# Files above FILE_LINES_ASKED lines, with the reason for their length.
LONG = {
    "broker/storage/ownpage.py": "one state machine: changes of the own page, their order, its chain and its end",
    "broker/storage/hold.py": "one state machine: every edit of a log by its writer, each with its record",
    "broker/client/aio.py": "the client's interface in one class, half of it docstrings",
    "broker/operations/replies.py": "one declaration for each reply of the interface",
    "broker/client/protocol.py": "one function for each request and each answer of the interface",
    "chaos/commands.py": "one command: its options, which of them go together, and the run that they describe",
    "broker/config/sections.py": "every key with its bounds, and the rules between keys",
    "broker/coordination/zookeeper.py": "kazoo's only door: its session, contact, requests, TLS and rights",
    "broker/http/budget.py": "the one account of a connection, with its caller, its node and its quota",
    "broker/http/outbound.py": "one connection: its requests, the calls of its parser, and an answer that is read as it comes",
    "broker/rowlog/rowlog.py": "the application's interface, half of it docstrings",
    "broker/storage/entry.py": "the encoding and decoding of one cell's value",
    "broker/storage/log_reader.py": "one reader for both directions, with the same rules",
    "tests/kit/contract/log.py": "one suite, read from top to bottom",
    "tests/kit/logs/node.py": "the requests to a node of the random runs, one method for each",
    "broker/testing/mutants.py": "one list, with a function for each mutant",
    "broker/coordination/cluster_tenure.py": "every change of the members and the pins, and what follows from it",
    "broker/topics/leaders.py": "all transitions from one leader of a topic to the next",
    "broker/topics/topics.py": "the methods that the API calls, half of it docstrings",
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
    """Return the functions of a file that are too long, and the file if it is."""
    long = [
        f"function {function.name} has {body_lines(function)} lines"
        for function in functions(ast.parse(source))
        if body_lines(function) > FUNCTION_LINES_MAX
    ]
    lines = source.count("\n")
    return [*long, f"the file has {lines} lines"] if lines > FILE_LINES_MAX else long


def keeps_a_task(source: str) -> list[str]:
    """Return where an error is raised for a time-out with the time-out's traceback; see ``broker.shield``."""
    handlers = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and "TimeoutError" in ast.unparse(node.type)
    )
    return [
        f"line {node.lineno}: raise it from bare(error)"
        for handler in handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if node.cause is None or not ast.unparse(node.cause).startswith("bare(")
    ]


def without_docstring(source: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(source)) else ["it has no docstring"]


def long_without_reason(names: Iterable[str]) -> list[str]:
    return [
        f"{name}: {lines} lines: split it, or give a reason in LONG"
        for name in names
        if (lines := text(name).count("\n")) > FILE_LINES_ASKED and not LONG.get(name)
    ]


def test_files_and_functions_are_not_too_long() -> None:
    assert offenders(SOURCES, too_long) == []


def test_a_long_file_has_a_reason() -> None:
    assert long_without_reason(SOURCES) == []


def test_a_module_has_a_docstring() -> None:
    assert offenders(tracked("broker/*.py"), without_docstring) == []


def test_the_rules_find_long_functions_and_files() -> None:
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


def test_an_error_in_place_of_a_time_out_keeps_no_task() -> None:
    assert offenders(tracked("broker/*.py"), keeps_a_task) == []
    source = "try: ...\nexcept TimeoutError as error: raise ValueError() from {}"
    found = [keeps_a_task(source.format(cause)) for cause in ("error", "bare(error)")]
    assert [len(each) for each in found] == [1, 0]

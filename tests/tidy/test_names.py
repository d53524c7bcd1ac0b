"""One word, one thing: no two classes of the product have one name."""

import ast
from collections import defaultdict

from tests.tidy.sources import text, tracked

PUBLIC = {
    "Entry": "the storage's unit, and one entry of a rowlog's index",
    "Message": "of a topic, and of a rowlog",
    "Processor": "of a stream job's keys, and of a rowlog",
    "Settings": "of a client, and of a rowlog",
    "State": "of a stream job's key, and of a rowlog's message",
    "Turn": "of the event loop, and of a subscription",
}
"""Names that RowLog, which no other part imports, shares with another part."""


def classes(source: str) -> list[str]:
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def twins(files: dict[str, str]) -> dict[str, list[str]]:
    """Return the classes that several files define, with those files."""
    found = defaultdict(list)
    for name, source in files.items():
        for each in classes(source):
            found[each].append(name)
    return {each: names for each, names in found.items() if len(names) > 1}


def test_no_two_classes_have_one_name() -> None:
    found = twins({name: text(name) for name in tracked("broker/*.py", "chaos/*.py")})
    assert {each: names for each, names in found.items() if each not in PUBLIC} == {}
    assert PUBLIC.keys() - found.keys() == set(), "these have one meaning now"


def test_the_rule_finds_a_twin() -> None:
    assert twins({"a.py": "class A: pass", "b.py": "class A: pass\nclass B: pass"}) == {
        "A": ["a.py", "b.py"]
    }

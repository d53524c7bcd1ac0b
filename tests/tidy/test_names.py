"""Names are unique: no two classes of the product share a name, and no two modules except mirrors."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.tidy.sources import text, tracked

PUBLIC = {
    "Entry": "the storage's unit, and one entry of a rowlog's index",
    "Message": "of a topic, and of a rowlog",
    "Processor": "of a stream job's keys, and of a rowlog",
    "Settings": "of a client, and of a rowlog",
    "State": "of a stream job's key, and of a rowlog's message",
}
"""Class names that two parts share. One of the parts is mostly RowLog, which no other part imports."""

BODIES = {"broker/operations/replies.py", "broker/operations/sent.py"}
"""Modules whose classes are the names of bodies in the OpenAPI document: each tells the form of what another class is."""

MIRRORS = {
    "browse": "of a topic, and its operation",
    "cluster": "a cluster: its operations, its command, a node in it; a cluster of processes, and a simulated one",
    "commands": "the commands of each group",
    "cursors": "of a topic, their operations, their calls, their commands",
    "dead_letters": "what a letter tells, and their commands",
    "letters": "dead letters of a rowlog, and their commands",
    "log": "the log, and the workload of logs",
    "memory": "each port's implementation in memory",
    "node": "a node, and a simulated one",
    "publish": "its operation and its command",
    "rowlog": "the rowlog, its workload, its checker",
    "table": "the port to a store, and each implementation",
    "topics": "of a node, on the wire, their commands, their workload",
    "transactions": "their operations, calls and commands; on a node; their workload and its checker",
    "zookeeper": "its server, and its client",
}
"""Module names that several packages use for the same thing; the package says which side of it."""
GERUNDS = {"ring", "routing"}
"""Modules whose names end in -ing and are nouns."""


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
    files = set(tracked("broker/*.py", "chaos/*.py")) - BODIES
    found = twins({name: text(name) for name in files})
    assert {each: names for each, names in found.items() if each not in PUBLIC} == {}
    assert PUBLIC.keys() - found.keys() == set(), (
        "remove from PUBLIC: only one class has this name now"
    )


def test_the_rule_finds_two_classes_of_one_name() -> None:
    assert twins({"a.py": "class A: pass", "b.py": "class A: pass\nclass B: pass"}) == {
        "A": ["a.py", "b.py"]
    }


def modules(files: list[str]) -> dict[str, list[str]]:
    """Return the files of each module name, without ``__init__`` and ``__main__``."""
    found = defaultdict(list)
    for name in files:
        if not (stem := Path(name).stem).startswith("__"):
            found[stem].append(name)
    return found


def test_no_two_modules_have_one_name_except_mirrors() -> None:
    found = modules(tracked("broker/*.py", "chaos/*.py"))
    several = {each for each, names in found.items() if len(names) > 1}
    assert several == MIRRORS.keys()


def test_modules_are_nouns() -> None:
    found = modules(tracked("broker/*.py", "chaos/*.py"))
    assert {each for each in found if each.endswith("ing")} == GERUNDS


def test_the_rule_finds_modules_of_one_name() -> None:
    assert modules(["a/b.py", "c/b.py", "a/__init__.py"]) == {"b": ["a/b.py", "c/b.py"]}


GLOSSARY = "docs/internals/glossary.md"
HOMES = {
    "hold": ("broker/storage/hold.py",),
    "lane": ("broker/routing/",),
    "stage": ("broker/client/", "broker/operations/", "broker/topics/stages.py"),
    "turn": ("broker/turns.py",),
}
"""Where the classes stand that have one of these words in their name. Words with a plain meaning are soon taken twice."""


def glossary_words(source: str) -> list[str]:
    """Return the words that the tables of the glossary explain."""
    firsts = re.findall(r"^\| ([^|]+?) +\|", source, re.MULTILINE)
    return [word for first in firsts for word in first.split(", ") if word != "word"]


def named_after(word: str, source: str) -> list[str]:
    """Return the classes with a word, or its plural, in their names."""
    wanted = {word.capitalize(), f"{word.capitalize()}s"}
    return [each for each in classes(source) if wanted & set(re.findall("[A-Z][a-z]*", each))]


def test_the_glossary_explains_each_word_once() -> None:
    found = glossary_words(text(GLOSSARY))
    assert sorted(found) == sorted(set(found))
    assert HOMES.keys() <= set(found)


def test_classes_named_after_a_word_of_the_glossary_mean_what_it_says() -> None:
    strays = [
        f"{name}: {each}"
        for name in tracked("broker/*.py", "chaos/*.py")
        for word, homes in HOMES.items()
        for each in named_after(word, text(name))
        if not name.startswith(homes)
    ]
    assert strays == [], "the word means another thing: name the class by what it does"


def test_the_rules_find_a_word_with_two_meanings() -> None:
    assert named_after("turn", "class _RowTurns: pass\nclass Returned: pass") == ["_RowTurns"]
    assert glossary_words("| word | meaning |\n|---|---|\n| slot, lease | a lock |\n") == [
        "slot",
        "lease",
    ]

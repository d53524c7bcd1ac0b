"""The steps of the nodes: random scripts for the random search, small scripts for the complete search."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.model.node import Step

Script = list[Step]
Plan = tuple[list[Script], list[int]]
"""A script and a clock (an id; it does not run) for each node."""


class Mix(NamedTuple):
    """The steps of random scripts, in addition to appends."""

    floor: bool = False
    marks: bool = False
    tx: bool = False
    topic: bool = False
    payloads: bool = False
    polls: bool = True
    reads: bool = True
    packs: bool = False


def appends(*labels: str) -> Script:
    return [("append", label) for label in labels]


def numbered(name: str, count: int) -> Script:
    return appends(*(f"{name}{i}" for i in range(count)))


def clocks(rnd: Random, count: int) -> list[int]:
    return [rnd.choice((0, 0, 1, 3, 8)) for _ in range(count)]


def mark_steps(rnd: Random, name: str) -> Script:
    keyed: Step = ("append", f"k{name}", f"key{rnd.randrange(3)}")
    stages: Script = [("marks", "gather"), ("marks", "put"), ("marks", "raise")]
    return [keyed] * 8 + [("marks",)] * 2 + stages * 2


def payload_steps(rnd: Random, name: str) -> Script:
    stores: Script = [("store", rnd.randrange(2), f"s{name}")] * 5
    publishes: Script = [("publish", rnd.randrange(2), f"p{name}")] * 2
    return [
        *stores,
        *publishes,
        ("references",),
        ("drop", rnd.randrange(2)),
        ("forget", rnd.randrange(2)),
    ]


def pool(rnd: Random, mix: Mix, name: str, is_last: bool) -> Script:
    """Return the steps to draw from; a step that is listed more often is more likely."""
    steps: Script = appends(f"m{name}") * 4 + [("take",), ("handoff",)]
    if mix.reads:
        steps += [("read", rnd.choice((0, 0, rnd.randrange(1, 20))))]
    if mix.floor:
        steps += [("floor", rnd.randrange(2))] * 2
    if mix.polls:
        steps += [("poll",)]
    if mix.marks:
        steps += mark_steps(rnd, name)
    if mix.topic:
        steps += [("delete",), ("create",)] * (2 if is_last else 1) + [("generations",)]
    if mix.payloads:
        steps += payload_steps(rnd, name)
    if mix.packs:
        steps += [("pack",)] * 2
    if mix.tx:
        steps += [("append", f"t{name}", None, "tx")] * 3
    return steps


def mixed(rnd: Random, mix: Mix) -> Plan:
    """Draw scripts for two or three writers, and for readers beside them."""
    writers = rnd.choice((2, 3, 3))
    scripts = [
        [
            rnd.choice(pool(rnd, mix, f"{i}.{j}", i == writers - 1))
            for j in range(rnd.randrange(2, 9))
        ]
        for i in range(writers)
    ]
    tagged = tuple(s[1] for script in scripts for s in script if s[0] == "append" and len(s) > 3)
    if mix.tx:
        for script in scripts:
            if rnd.random() < 0.7:
                script += [("wait", tagged), ("rollback", "tx"), ("poll",), ("poll",)]
    if mix.reads:
        begins = [rnd.choice((0, rnd.randrange(1, 20))) for _ in range(rnd.randrange(1, 5))]
        scripts.append([("read", begin) for begin in begins])
    if mix.payloads:
        scripts.append([("references",)] * 3)
    return scripts, clocks(rnd, len(scripts))


def zombies(_rnd: Random) -> Plan:
    """Each node takes over from the one before, and pages are removed while former leaders pause."""
    scripts: list[Script] = [
        numbered("a", 3),
        [step for append in numbered("b", 3) for step in (append, ("floor", 1))],
        [step for append in numbered("c", 3) for step in (append, ("poll",))],
        [("append", "d"), ("poll",)],
        [("read", 0)] * 3,
    ]
    return scripts, [0] * 5


def churn(rnd: Random) -> Plan:
    """A topic is deleted, created again and swept, while leaders pause."""
    scripts: list[Script] = [
        numbered("a", rnd.randrange(1, 4)),
        [*numbered("b", rnd.randrange(1, 3)), ("delete",), ("create",), ("generations",)],
        [("take",), *numbered("c", 2)],
        [("delete",), ("create",), ("delete",), ("create",), ("generations",)],
    ]
    for script in scripts[:3]:
        if rnd.random() < 0.4:
            script.append(("poll",))
    return scripts, clocks(rnd, 4)


def stores(rnd: Random) -> Plan:
    """One payload log: stores of successive leaders, also after unknown outcomes."""
    a: Script = [("store", 0, f"a{j}") for j in range(8)]
    b: Script = [("store", 0, f"b{j}") for j in range(rnd.randrange(3))]
    c: Script = [("publish", 0, "c")] * rnd.randrange(2)
    return [a, [("append", "b"), *b], [*c, ("references",)]], clocks(rnd, 3)


def floored(rnd: Random) -> Plan:
    """The floor rises above rolled-back messages, while other nodes are about to claim."""
    tagged: Script = [("append", f"t{j}", None, "tx") for j in range(rnd.choice((2, 2, 4)))]
    a: Script = [*tagged, ("floor", 0), ("rollback", "tx")]
    late: Script = [("wait", ("t1",)), ("poll",)]
    scripts = [a, *[late] * rnd.randrange(1, 3)]
    return scripts, clocks(rnd, len(scripts))


def after(label: str, *steps: Step) -> Script:
    """Begin after an append is done: so two nodes interact later, and in fewer orders."""
    return [("wait", (label,)), *steps]


def effects(rnd: Random) -> Plan:
    """An append under a key in a transaction is repeated, in this or another transaction, also after its rollback."""
    first: Step = ("append", "a0", "key", "tx")
    again = [("append", f"r{j}", "key", rnd.choice(("tx", "tx", "ty", None))) for j in range(4)]
    a: Script = [first, *after("a0", again[0], ("rollback", "tx"), again[1])]
    return [a, after("a0", again[2], ("marks",), again[3])], clocks(rnd, 2)


def maybe(rnd: Random, chance: float) -> bool:
    return rnd.random() < chance


RANDOM: dict[str, Callable[[Random], Plan]] = {
    "log": lambda r: mixed(r, Mix(floor=True)),
    "plain": lambda r: mixed(r, Mix()),
    "packed": lambda r: mixed(r, Mix(packs=True, tx=maybe(r, 0.3), floor=maybe(r, 0.3))),
    "zombies": zombies,
    "marks": lambda r: mixed(r, Mix(marks=True, polls=False, reads=False)),
    "marks-floor": lambda r: mixed(r, Mix(marks=True, floor=True, polls=False, reads=False)),
    "rollback": lambda r: mixed(r, Mix(tx=True, floor=maybe(r, 0.2))),
    "floored": floored,
    "effects": effects,
    "topic": lambda r: mixed(r, Mix(topic=True, floor=maybe(r, 0.3))),
    "churn": churn,
    "stores": stores,
    "payloads": lambda r: mixed(r, Mix(payloads=True, polls=False, reads=False)),
    "payloads-topic": lambda r: mixed(r, Mix(payloads=True, topic=True, polls=False, reads=False)),
    "all": lambda r: mixed(
        r, Mix(floor=True, marks=True, tx=True, topic=maybe(r, 0.5), payloads=True)
    ),
    "disk": lambda r: mixed(r, Mix(floor=maybe(r, 0.3), tx=maybe(r, 0.3))),
}


class Small(NamedTuple):
    """Scripts and clocks of the nodes, and the number of entries that fill a page."""

    scripts: list[Script]
    clocks: list[int]
    page_entries: int


TX: Step = ("append", "a1", None, "tx")
SMALL: dict[str, Small] = {
    "two": Small([appends("a1"), appends("b1")], [0, 3], 2),
    "two-late": Small([appends("a1", "a2"), after("a1", ("append", "b1"))], [0, 3], 2),
    "two-rolls": Small([appends("a1"), appends("b1")], [0, 3], 1),
    "roll": Small([appends("a1", "a2"), [("take",)]], [0, 3], 2),
    "three": Small([appends("a1"), appends("b1"), appends("c1")], [0, 5, 0], 2),
    "floor": Small([[*appends("a1"), ("floor", 1)], appends("b1")], [0, 0], 1),
    "floor-late": Small([[*appends("a1"), ("floor", 1)], after("a1", ("append", "b1"))], [0, 0], 2),
    "zombie": Small([appends("a1"), [*appends("b1"), ("floor", 1)], [("take",)]], [0, 0, 0], 1),
    "gone": Small(
        [
            [*appends("a1"), *after("b2", ("append", "a2"))],
            after("a1", ("append", "b1"), ("floor", 0), ("append", "b2")),
        ],
        [0, 0],
        1,
    ),
    "packed": Small(
        [appends("a1"), after("a1", ("append", "b1"), ("pack",)), after("b1", ("read", 0))],
        [0, 0, 0],
        1,
    ),
    "read": Small([appends("a1", "a2"), [("read", 0)]], [0, 0], 1),
    "read-floor": Small([[*appends("a1"), ("floor", 1)], [("read", 0)]], [0, 0], 1),
    "poll": Small([[*appends("a1"), ("poll",)], appends("b1")], [0, 0], 2),
    "marks": Small([[("append", "a1", "k"), ("marks",)], [("append", "b1", "k")]], [0, 0], 2),
    "marks-late": Small(
        [
            [
                ("append", "a1", "k"),
                ("marks", "gather"),
                ("append", "a2", "l"),
                ("marks", "put"),
                ("marks", "raise"),
                ("append", "a3"),
            ],
            after("a2", ("append", "b1", "l")),
        ],
        [0, 0],
        4,
    ),
    "marks-behind": Small(
        [
            [
                ("append", "a1", "k"),
                ("marks", "gather"),
                ("append", "a2", "l"),
                ("marks", "put"),
                ("append", "a3"),
                ("marks", "raise"),
                ("append", "a4"),
            ],
            after("a2", ("append", "b1", "l")),
        ],
        [0, 0],
        4,
    ),
    "rollback": Small(
        [
            [TX, ("wait", ("a1",)), ("rollback", "tx")],
            [("wait", ("a1",)), ("take",), ("poll",)],
        ],
        [0, 0],
        2,
    ),
    "rollback-slices": Small(
        [
            [TX, ("append", "a2", None, "tx"), ("rollback", "tx")],
            [("wait", ("a2",)), ("take",), ("poll",)],
        ],
        [0, 0],
        3,
    ),
    "rollback-sealed": Small(
        [
            [TX, ("append", "a2", None, "tx"), ("rollback", "tx")],
            [("wait", ("a2",)), ("poll",)],
        ],
        [0, 0],
        2,
    ),
    "rollback-floor": Small(
        [
            [TX, ("floor", 0), ("rollback", "tx")],
            [("wait", ("a1",)), ("poll",)],
        ],
        [0, 0],
        1,
    ),
    "effects": Small(
        [
            [("append", "a1", "k", "tx"), ("wait", ("a1",)), ("rollback", "tx")],
            after("a1", ("append", "b1", "k", "tx")),
        ],
        [0, 0],
        2,
    ),
    "topic": Small([appends("a1"), [("delete",), ("create",)]], [3, 0], 2),
    "topic-gone": Small(
        [appends("a1", "a2"), after("a1", ("delete",), ("create",), ("generations",))], [0, 0], 1
    ),
    "dead": Small(
        [
            [*appends("a1"), *after("b1", ("append", "a2"))],
            after("a1", ("delete",), ("create",), ("generations",), ("append", "b1")),
        ],
        [0, 0],
        1,
    ),
    "topic-roll": Small([appends("a1"), [("delete",), ("create",), ("generations",)]], [3, 0], 1),
    "payloads": Small([[("store", 0, "s1")], [("publish", 0, "p1")]], [0, 0], 2),
    "payloads-late": Small(
        [[*appends("a1"), ("store", 0, "s1")], after("a1", ("publish", 0, "p1"))], [0, 0], 2
    ),
    "stores": Small([[("store", 0, "s1"), ("store", 0, "s2")]], [0], 2),
    "payloads-topic": Small([[("store", 0, "s1")], [("delete",), ("create",)]], [0, 0], 2),
}

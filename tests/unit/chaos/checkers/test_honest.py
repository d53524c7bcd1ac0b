"""Correct histories have no violation, and each lie in one is found."""

import copy
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.checkers import NAMES, check
from chaos.history import Event, calls_of
from tests.unit.chaos.checkers.honest import HonestWorld

LONG = 90
SEEDS = range(5)


def acknowledged(events: list[Event]) -> list[Event]:
    """Return the invokes of acknowledged publishes without a transaction."""
    calls = calls_of(events)
    return [
        events[call.invoked]
        for call in calls
        if call.op == "publish" and call.is_ok and call.asked["pointer"] is None
    ]


def reads(events: list[Event], *, final: bool | None = None) -> list[Event]:
    """Return the oks of reads without a snapshot that showed more than two rows, in order."""
    calls = calls_of(events)
    return [
        events[call.ended]
        for call in calls
        if call.op == "read"
        and call.is_ok
        and call.asked.get("snapshot") is None
        and len(call.told["rows"]) > 2
        and final in (None, call.process.startswith("final"))
    ]


def rows_everywhere(events: list[Event]) -> list[list]:
    """Return the rows of every answered read."""
    return [event.value["rows"] for event in events if event.type == "ok" and "rows" in event.value]


def lose(events: list[Event], chance: random.Random) -> set[str]:
    """Remove an acknowledged message from all reads."""
    gone = chance.choice(acknowledged(events)).value["payloads"]
    for rows in rows_everywhere(events):
        rows[:] = [row for row in rows if row[1] not in gone]
    return {"lost_prefix", "lost_middle", "lost_tail"}


def duplicate(events: list[Event], chance: random.Random) -> set[str]:
    """Show a message a second time in the final read."""
    [rows] = [event.value["rows"] for event in reads(events, final=True)[:1]]
    rows.append([f"{int(rows[-1][0], 16) + 1:020x}", chance.choice(rows)[1], None])
    return {"duplicated"}


def swap(events: list[Event], chance: random.Random) -> set[str]:
    """Exchange two messages in all reads."""
    final = reads(events, final=True)[0].value["rows"]
    known = {payload for event in acknowledged(events) for payload in event.value["payloads"]}
    ends = [place for place, row in enumerate(final) if row[1] in known]
    one, other = final[ends[0]][1], final[ends[-1]][1]
    exchanged = {one: other, other: one}
    for rows in rows_everywhere(events):
        for row in rows:
            row[1] = exchanged.get(row[1], row[1])
    return {"reordered", "torn"}


def hide(events: list[Event], chance: random.Random) -> set[str]:
    """Remove a row from the page of one reader."""
    event = chance.choice(reads(events, final=False))
    del event.value["rows"][1]
    return {"changed_read", "skipped", "time_addressing"}


def alter(events: list[Event], chance: random.Random) -> set[str]:
    """Change a payload in the page of one reader."""
    chance.choice(chance.choice(reads(events)).value["rows"])[1] = "altered"
    return {"phantom"}


def admit(events: list[Event], chance: random.Random) -> set[str]:
    """Add a refused message to the final reads."""
    calls = calls_of(events)
    [refused, *_] = [c for c in calls if c.op == "publish" and c.outcome == "fail"]
    for event in reads(events, final=True):
        rows = event.value["rows"]
        rows.append([f"{int(rows[-1][0], 16) + 1:020x}", refused.asked["payloads"][0], None])
    return {"refused_but_stored"}


def diverge(events: list[Event], chance: random.Random) -> set[str]:
    """Remove the last row from one node's final read."""
    del chance.choice(reads(events, final=True)[1:]).value["rows"][-1]
    return {"divergence"}


def turn_back(events: list[Event], chance: random.Random) -> set[str]:
    """Reverse a page of one reader."""
    chance.choice(reads(events)).value["rows"].reverse()
    return {"misordered"}


def with_snapshot(events: list[Event]) -> list[Event]:
    calls = calls_of(events)
    return [
        events[call.ended]
        for call in calls
        if call.op == "read"
        and call.is_ok
        and call.asked.get("snapshot")
        and len(call.told["rows"]) > 1
    ]


def hold_back(events: list[Event], chance: random.Random) -> set[str]:
    """Hide a message from a transaction whose snapshot includes it."""
    del chance.choice(with_snapshot(events)).value["rows"][0]
    return {"lost_visible"}


def let_through(events: list[Event], chance: random.Random) -> set[str]:
    """Show a transaction a message that was rolled back or is invalid."""
    final = reads(events, final=True)[0].value["rows"]
    last = with_snapshot(events)[-1].value["rows"]
    shown = {row[0] for row in last}
    hidden = [row for row in final if row[0] not in shown]
    last.append([*chance.choice(hidden)[:2], None])
    last.sort()
    return {"rolled_back", "dirty_read"}


def lead_again(events: list[Event], chance: random.Random) -> set[str]:
    """Give the last acknowledgement a lower epoch."""
    place = max(n for n, e in enumerate(events) if e.op == "publish" and e.type == "ok")
    event = events[place]
    events[place] = Event(*[getattr(event, name) for name in event.__slots__[:7]], 0, event.time_ns)
    return {"two_epochs"}


def undo_a_commit(events: list[Event], chance: random.Random) -> set[str]:
    """Show a message of a committed transaction as rolled back at the end."""
    calls = calls_of(events)
    committed = {call.asked["pointer"] for call in calls if call.op == "commit" and call.is_ok}
    final = reads(events, final=True)[0].value["rows"]
    [row, *_] = [row for row in final if row[2] in committed]
    row[2] = -row[2]
    return {"half_transaction", "phantom_rollback"}


LIES = [
    lose, duplicate, swap, hide, alter, admit, diverge, turn_back, hold_back, let_through, lead_again,
    undo_a_commit,
]  # fmt: skip
Lie = Callable[[list[Event], random.Random], set[str]]


def found(events: list[Event]) -> set[str]:
    return check(calls_of(events)).names


@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 150))
def test_an_honest_history_has_no_violation(seed: int, steps: int) -> None:
    verdict = check(calls_of(HonestWorld(seed, steps).events))
    assert not verdict.violations, verdict.violations


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lie_is_found(lie: Lie, seed: int) -> None:
    events = copy.deepcopy(HonestWorld(seed, 3 * LONG).events)
    names = lie(events, random.Random(seed))
    assert names <= NAMES
    assert names & found(events)

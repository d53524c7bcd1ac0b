"""The adversary, which injects faults, and the random search.

A change may be applied, and answered True, False or with an error (after which the node may be at its deadline). It
may be applied not now, but at any later moment or never. It may be applied twice, the second time at any later moment;
this holds for the creation of a page, too. A read that is not marked as current may be stale: it may show each of its
rows in an older state, but not from before the row's last rollback, unless the run allows that. A False may come from
a stale read. Nodes pause between any two calls. Clocks differ and do not run. In the configuration ``disk`` the
store's process dies. There a failed write may leave a hole in the store's log, and no write behind the hole survives.

``alone``: from the state at random moments, and at the end, one fresh node without faults must be able to claim, append
and read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from tests.model.chain import Node
from tests.model.check import (
    EMPTY,
    Ghost,
    Violation,
    after_write,
    answered,
    bad,
    judge,
    stale_answer,
)
from tests.model.configs import RANDOM, Script
from tests.model.node import program
from tests.model.rules import keep
from tests.model.store import (
    ROOT,
    START,
    WRITES,
    Call,
    Key,
    Log,
    Program,
    Row,
    Rows,
    is_page,
    keys_of,
    page_key,
    read,
    root_key,
    write,
)

STEPS_MAX = 1500
FRESH = 99
"""The number of the fresh node."""
LABEL = "Z"


class Alone:
    """One fresh node without faults."""

    def __init__(self, rows: Rows, ghost: Ghost) -> None:
        self.rows, self.ghost = dict(rows), ghost

    def has_appended(self) -> bool:
        return any(acked[0] == LABEL for acked in self.ghost.acked)

    def do(self, script: Script) -> None:
        run = program(Node(FRESH, 0), script)
        answer = None
        for _ in range(600):
            try:
                answer = self.answer(run.send(answer))
            except StopIteration:
                return
        bad("no progress: 600 calls")

    def answer(self, call: Call) -> Any:
        if call[0] == "ev":
            self.ghost = answered(self.rows, self.ghost, call[1:], FRESH)
            return None
        if call[0] not in WRITES:
            return read(self.rows, call)
        before = dict(self.rows)
        answer, changed = write(self.rows, call)
        if changed:
            self.ghost = after_write(before, self.rows, self.ghost, call)
        return answer


def alone(rows: Rows, ghost: Ghost) -> None:
    """Check that a fresh node can go on from this state. Raises Violation."""
    fresh = Alone(rows, ghost)
    for _ in range(3):
        if not fresh.has_appended():
            fresh.do([("create",), ("append", LABEL)])
    if not fresh.has_appended():
        bad("no progress: cannot append", rows[ROOT].head)
    fresh.do([("read", 0), ("poll",), ("floor", 1), ("read", 0)])


class Chances(NamedTuple):
    """The probabilities of events in a run; ``nap``: the mean length of a pause, in calls."""

    fault: float
    stale: float
    sleepy: float
    nap: int

    @classmethod
    def drawn(cls, rnd: Random, is_disk: bool) -> Chances:
        fault, stale = rnd.choice((0.0, 0.02, 0.06, 0.12)), rnd.choice((0.0, 0.0, 0.05, 0.2))
        sleepy, nap = rnd.choice((0.02, 0.06, 0.15)), rnd.choice((20, 80, 200))
        return cls(fault, 0.0 if is_disk else stale, sleepy, nap)


@dataclass
class Process:
    node: Node
    run: Program[None]
    call: Call | None = None
    wakes: int = 0


@dataclass
class Disk:
    """The rows that survive the death of the store's process; ``hole``: no later write survives."""

    rows: Rows
    hole: bool = False


Told = tuple[Any, ...]
"""A step of a story: (node, call, answer), with "stale" as a fourth part after a stale read."""


class Run:
    """One random run: the rows, the ghost, the nodes, and changes in flight."""

    def __init__(self, seed: int, config: str, *, stale_rollbacks: bool = False) -> None:
        self.rnd = Random(seed)
        self.stale_rollbacks = stale_rollbacks
        self.rows, self.ghost = dict(START), EMPTY
        self.history: dict[Key, list[Row | None]] = {k: [v] for k, v in self.rows.items()}
        self.late: list[Call] = []
        self.story: list[Told] = []
        self.calls = self.now = 0
        scripts, clocks = RANDOM[config](self.rnd)
        self.disk = Disk(self.rows) if config == "disk" else None
        self.chances = Chances.drawn(self.rnd, self.disk is not None)
        nodes = [Node(i, clock) for i, clock in enumerate(clocks)]
        self.processes = [Process(n, program(n, s)) for n, s in zip(nodes, scripts, strict=True)]

    def tell(self, actor: int | str, call: Call, answer: object, *more: str) -> None:
        self.story.append((actor, call, answer, *more))

    def go(self) -> None:
        """Run to the end. Raises Violation."""
        for process in self.processes:
            self.advance(process, None)
        while self.now < STEPS_MAX and self.step():
            self.now += 1
        if self.disk:
            self.reopen(self.disk, "the end")
        alone(self.rows, self.ghost)

    def step(self) -> bool:
        """Do one step; return False if all nodes are done."""
        if self.disk and self.rnd.random() < 0.01:
            self.reopen(self.disk, "it died")
        if self.late and self.rnd.random() < 0.04:
            call = self.late.pop(self.rnd.randrange(len(self.late)))
            self.tell("late", call, self.write(call))
            return True
        live = [process for process in self.processes if self.can_go_on(process)]
        ready = [process for process in live if process.wakes <= self.now]
        if ready:
            self.let(ready[0] if self.rnd.random() < 0.5 else self.rnd.choice(ready))
        elif live:
            self.now = min(process.wakes for process in live) - 1
        return bool(live)

    def can_go_on(self, process: Process) -> bool:
        call = process.call
        return call is not None and (call[0] != "wait" or self.ghost.done.issuperset(call[1]))

    def let(self, process: Process) -> None:
        """Answer the call of a node."""
        call = process.call
        assert call is not None
        self.calls += 1
        if call[0] == "wait":
            self.advance(process, None)
            return
        if call[0] == "forget":
            answer: Any = self.forget(process, call)
        elif call[0] in WRITES:
            answer = self.faulty_disk(self.disk, call) if self.disk else self.faulty_write(call)
        else:
            self.advance(process, self.reading(process, call))
            self.pause(process)
            return
        self.tell(process.node.number, call, answer)
        if self.disk and answer == "error" and keep("leveldb-reopen"):
            self.reopen(self.disk, "a write failed")
        self.advance(process, answer)
        self.pause(process)

    def advance(self, process: Process, answer: object) -> None:
        """Give a node its answer; judge its answers to clients before its next call."""
        number = process.node.number
        try:
            call = process.run.send(answer)
            while call[0] == "ev":
                self.tell(number, call, None)
                self.ghost = answered(self.rows, self.ghost, call[1:], number)
                call = process.run.send(None)
            process.call = call
        except StopIteration:
            process.call = None

    def pause(self, process: Process) -> None:
        if self.rnd.random() < self.chances.sleepy:
            process.wakes = self.now + int(self.rnd.expovariate(1 / self.chances.nap))
        if self.rnd.random() < 0.01:
            alone(self.rows, self.ghost)

    # --- Writes ----------------------------------------------------------------------------------

    def write(self, call: Call) -> bool:
        rows = dict(self.rows)
        answer, changed = write(rows, call)
        if changed:
            before, self.rows = self.rows, rows
            self.ghost = after_write(before, rows, self.ghost, call)
            self.remember(call)
            synced = keep("synced") or self.rnd.random() < 0.7
            if self.disk and not self.disk.hole and synced:
                self.disk.rows = rows
        return answer

    def remember(self, call: Call) -> None:
        for key in keys_of(call):
            versions = self.history.setdefault(key, [None])
            if call[0] == "change" and call[5] and not self.stale_rollbacks:
                versions.clear()
            versions.append(self.rows.get(key))

    def differed(self, call: Call) -> bool:
        """Return whether the row had another head than a change expects at some time."""
        versions = self.history.get(call[1], []) if call[0] == "change" else []
        return any((row.head if row else None) != call[2] for row in versions)

    def faulty_write(self, call: Call) -> Any:
        fault = self.chances.fault
        x = self.rnd.random() / fault if fault else 2.0
        if x < 0.6:
            if x < 0.5:
                self.late.append(call)
            return "error" if x < 0.3 or 0.5 <= x < 0.55 else "deadline"
        if x < 0.75 and self.chances.stale and self.differed(call):
            return False
        answer = self.write(call)
        if 1 <= x < 1.5:
            self.late.append(call)
        for below, said in ((0.83, "error"), (0.88, "deadline"), (1, False)):
            if x < below:
                return said
        return answer

    def faulty_disk(self, disk: Disk, call: Call) -> Any:
        x, fault, before = self.rnd.random(), self.chances.fault, disk.rows
        answer: Any = self.write(call) if x >= fault / 2 else "error"
        if x >= fault:
            return answer
        if not disk.hole and self.rnd.random() < 0.5:
            disk.rows = before
        disk.hole = True
        return "error"

    def reopen(self, disk: Disk, why: str) -> None:
        self.tell("store", ("reopen", why), None)
        self.rows, disk.hole = disk.rows, False
        judge(self.rows, self.ghost)

    def forget(self, process: Process, call: Call) -> bool:
        """Forget a payload log after the margin: only when no call for it is in flight."""
        log = call[1]
        others = [p.node for p in self.processes if p is not process and p.call is not None]
        is_late = any(late[0] == "change" and belongs(late[1], log) for late in self.late)
        if is_late or any(node.busy == log for node in others) or not self.write(call):
            return False
        for key in [key for key in self.history if belongs(key, log)]:
            del self.history[key]
        return True

    # --- Reads -------------------------------------------------------------------------------------

    def reading(self, process: Process, call: Call) -> Any:
        seen, number = self.rows, process.node.number
        may_be_stale = self.chances.stale and call[0] in {"get", "cells", "last", "heads"}
        if may_be_stale and self.rnd.random() < self.chances.stale:
            seen = self.older(call)
        is_stale = seen is not self.rows
        if is_stale:
            self.ghost = stale_answer(self.ghost, number)
        answer = read(seen, call)
        self.tell(number, call, answer, *(("stale",) if is_stale else ()))
        return answer

    def older(self, call: Call) -> Rows:
        """Return the rows for a stale read: some of the rows that it reads are in an older state."""
        keys: list[Key] = [call[1]]
        if call[0] in {"last", "heads"}:
            keys = [key for key in self.history if is_page(key) and key[1] == call[1]]
        rows = self.rows
        for key in keys:
            versions = self.history.get(key, [])
            if len(versions) < 2 or self.rnd.random() >= 0.8:
                continue
            row = self.rnd.choice(versions)
            if row is self.rows.get(key):
                continue
            rows = {**rows, key: row} if row else {k: v for k, v in rows.items() if k != key}
        return rows


def belongs(key: Key, log: Log) -> bool:
    return key == root_key(log) or (is_page(key) and key == page_key(log, key[2]))


@dataclass
class Found:
    """The result of a random search; ``seed`` is the next seed, or the one with the ``violation``."""

    seed: int
    runs: int = 0
    calls: int = 0
    acknowledged: int = 0
    config: str = ""
    violation: str = ""


def search(
    configs: list[str],
    seed: int,
    *,
    seconds: float = float("inf"),
    runs_max: int | None = None,
    stale_rollbacks: bool = False,
) -> Found:
    """Make random runs until a violation, or until the time or the runs are used up."""
    found, end = Found(seed), time.monotonic() + seconds
    while time.monotonic() < end and found.runs != runs_max:
        found.config = configs[found.seed % len(configs)]
        run = Run(found.seed, found.config, stale_rollbacks=stale_rollbacks)
        found.runs += 1
        try:
            run.go()
        except Violation as violation:
            found.violation = str(violation)
            return found
        found.calls += run.calls
        found.acknowledged += len(run.ghost.acked)
        found.seed += 1
    return found

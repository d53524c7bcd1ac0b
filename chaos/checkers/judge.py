"""The judge reads the calls of a history, line by line, and returns one verdict.

It keeps its facts in tables (see ``tables``): publishes, acknowledged messages that the end must show, and
shown rows that must stay. It looks at each line once, so the work grows in proportion to the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.checkers.availability import Availability, Faults, is_judged
from chaos.checkers.checker import Checker
from chaos.checkers.coverage import Coverage
from chaos.checkers.facts import TopicFacts
from chaos.checkers.fates import Fates
from chaos.checkers.final_log import Finals, Lost, Order
from chaos.checkers.history_rows import read_of
from chaos.checkers.identity import Identity
from chaos.checkers.publishes import Answers, Deadlines, ToldOrder
from chaos.checkers.reads import Ranges
from chaos.checkers.registers import Registers
from chaos.checkers.rowlog import RowLogs
from chaos.checkers.tables import Tables
from chaos.checkers.transactions import Rollbacks, Stored
from chaos.checkers.violations import (
    STORED_LATE,
    UNAVAILABLE,
    Findings,
    Promises,
    Verdict,
)
from chaos.checkers.visibility import Snapshots, WholeAtTheEnd
from chaos.history import WRITES, Operation, availability_name

BY_TOPIC: Final[tuple[type[Checker], ...]] = (
    ToldOrder,
    Answers,
    Deadlines,
    Identity,
    Ranges,
    Rollbacks,
    Stored,
    Snapshots,
    Coverage,
    Finals,
    Order,
    Lost,
    WholeAtTheEnd,
)
NAMES: Final = frozenset(
    (
        *(name for checker in BY_TOPIC for name in checker.names),
        *Availability.names,
        *Fates.names,
        *Faults.names,
        *Registers.names,
        *RowLogs.names,
    )
)
"""The names of all violations."""


class _TopicCheckers:
    """One topic and its checkers."""

    def __init__(
        self, name: str, tables: Tables, found: Findings, promises: Promises, world: _World
    ) -> None:
        self.facts = TopicFacts(name, tables, world.fates)
        self.availability = Availability(name, found, promises, world.faults)
        self.checkers = [checker(self.facts, found, promises) for checker in BY_TOPIC]

    def began(self, call: Operation) -> None:
        self.facts.began(call)
        for checker in self.checkers:
            checker.began(call)
        self.availability.began(call)

    def ended(self, call: Operation) -> int:
        """Judge an answer, and return how many rows it showed."""
        self.facts.ended(call)
        for checker in self.checkers:
            checker.ended(call)
        self.availability.ended(call)
        rows = 0
        if call.op == "read" and call.is_ok:
            read, life = read_of(call), self.facts.lives.life(call)
            rows = len(read.rows)
            for checker in self.checkers:
                checker.read(read, life)
        self.facts.lives.ended(call)
        return rows

    @property
    def is_known(self) -> bool:
        """True if the log was read to its end, or has no acknowledged writes, or was deleted."""
        if not self.facts.acked_lives or self.facts.lives.is_gone:
            return True
        newest = max(self.facts.acked_lives)
        return any(life >= newest and log.final for life, log in self.facts.logs.items())


class _World:
    """The checkers that span topics."""

    def __init__(self, tables: Tables, found: Findings) -> None:
        self.fates = Fates(tables, found)
        self.faults = Faults(found)
        self.registers = Registers(tables, found)
        self.rowlogs = RowLogs(found)


class Judge:
    """Judges one history.

    Args:
        promises: The limits that the run promises.
    """

    def __init__(self, promises: Promises | None = None) -> None:
        self._promises = promises or Promises()
        self._tables = Tables()
        self._found = Findings()
        self._world = _World(self._tables, self._found)
        self._topics: dict[str, _TopicCheckers] = {}
        self._registers: dict[str, Availability] = {}
        self._now_ns = 0
        self._acknowledged = 0
        self._tells_deadlines = False
        self._epochs: dict[str, int] = {}

    @property
    def steps(self) -> int:
        """Return how many table operations there were so far."""
        return self._tables.steps

    def verdict(self, calls: Iterable[Operation]) -> Verdict:
        """Judge all calls of the history."""
        lines = [(call.invoked, self._began, call) for call in calls]
        lines += [(call.ended, self._ended, call) for _, _, call in lines if call.ended is not None]
        for _, take, call in sorted(lines, key=lambda line: line[0]):
            take(call)
        return self._end()

    def _began(self, call: Operation) -> None:
        self._now_ns = call.invoked_ns
        world = self._world
        if call.op == "fault":
            self._look(call.invoked_ns)
            world.faults.began(call)
        elif call.topic:
            self._tells_deadlines |= call.asked.get("until_ms") is not None
            self._topic(call.topic).began(call)
        else:
            world.fates.began(call)
            world.registers.began(call)
            world.rowlogs.began(call)
            if (register := self._register(call)) is not None:
                register.began(call)

    def _ended(self, call: Operation) -> None:
        self._now_ns = call.ended_ns or self._now_ns
        world = self._world
        self._found.counts[f"{call.op}.{call.outcome}"] += 1
        if call.op == "fault":
            world.faults.ended(call)
        elif call.topic:
            self._found.counts["rows_read"] += self._topic(call.topic).ended(call)
            self._count(call)
        else:
            world.fates.ended(call)
            world.registers.ended(call)
            world.rowlogs.ended(call)
            if (register := self._register(call)) is not None:
                register.ended(call)
            self._acknowledged += call.op in WRITES and call.is_ok

    def _topic(self, name: str) -> _TopicCheckers:
        if name not in self._topics:
            topic = _TopicCheckers(name, self._tables, self._found, self._promises, self._world)
            self._topics[name] = topic
        return self._topics[name]

    def _register(self, call: Operation) -> Availability | None:
        """Return the availability of the register or rowlog of a call; None for other calls."""
        name = availability_name(call.op, call.topic, call.asked)
        if name is not None and name not in self._registers:
            self._registers[name] = Availability(
                name, self._found, self._promises, self._world.faults
            )
        return None if name is None else self._registers[name]

    @property
    def _asked(self) -> list[Availability]:
        return [*(topic.availability for topic in self._topics.values()), *self._registers.values()]

    def _look(self, now_ns: int) -> None:
        for one in self._asked:
            one.look(now_ns)

    def _count(self, call: Operation) -> None:
        if call.op != "publish":
            return
        word = {"ok": "acknowledged", "fail": "refused", "unknown": "unknown"}[call.outcome]
        self._found.counts[word] += len(call.asked["payloads"])
        if not call.is_ok:
            return
        self._acknowledged += 1
        if call.epoch is not None and call.epoch > self._epochs.get(call.topic, 0):
            self._found.counts["leader_changes"] += call.topic in self._epochs
            self._epochs[call.topic] = call.epoch

    def _end(self) -> Verdict:
        self._look(self._now_ns)
        for topic in self._topics.values():
            for checker in topic.checkers:
                checker.over()
        self._world.fates.over()
        self._world.rowlogs.over()
        topics = (topic.is_known for topic in self._topics.values())
        world = (self._world.registers.is_known, self._world.rowlogs.is_known)
        is_known = self._acknowledged > 0 and all(topics) and all(world)
        return self._found.verdict(is_known=is_known, unjudged=self._unjudged())

    def _unjudged(self) -> list[str]:
        """Return the names of the violations that this history can't show."""
        names = self._promises.unjudged
        if UNAVAILABLE not in names and not is_judged(self._asked):
            names.append(UNAVAILABLE)
        if STORED_LATE not in names and not self._tells_deadlines:
            names.append(STORED_LATE)
        return names


def check(calls: Iterable[Operation], promises: Promises | None = None) -> Verdict:
    """Judge a history."""
    return Judge(promises).verdict(calls)

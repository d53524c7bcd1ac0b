"""The judge of a random run: compares the answers to clients with the true log.

During a run the judge records the answers, and judges some at once. At the end of the run it compares them with the
true log::

    acknowledged     in the log, once, with these ids, for ever; never below the floor unless expired
    never            the append was refused: not in the log
    rolled back      hidden in storage, and in every answer after the rollback
    read, polled     a range of the true log without holes; it has every message acknowledged before it began,
                     unless a stale read happened meanwhile
    stored           in the published log; no message follows the publication

It also compares the heads with their pages: totals, counts, epochs, ids, marks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from broker.model import LOG_KEY_MIN, LogKey, timestamp_of
from broker.storage.entry import Entry, Mark
from broker.storage.head import NO_END
from broker.storage.keys import LogId
from broker.storage.marks import mark_key
from broker.storage.root import RootState
from broker.storage.table import Space
from tests.kit.logs.watched import TOPIC, Page, WatchedTable


class Shown(NamedTuple):
    """A message in an answer."""

    id: LogKey
    label: str
    is_hidden: bool


class Acked(NamedTuple):
    """An acknowledged append of one message."""

    label: str
    id: LogKey
    generation: int
    epoch: int


class Rolled(NamedTuple):
    """An acknowledged rollback."""

    generation: int
    pointer: int
    ids: frozenset[LogKey]
    """Messages of its range that were acknowledged before it began."""

    def covers(self, generation: int, pointer: int | None, key: LogKey) -> bool:
        """Return whether it covers a message."""
        return (generation, pointer) == self[:2] and key in self.ids


class Start(NamedTuple):
    """The counts of acknowledged requests when a request began."""

    acked: int
    rolled: int
    generation: int
    old_rows: int


class Answer(NamedTuple):
    """The messages of one read of ``[low, …)``. ``floor`` is the root's floor at the time of the answer."""

    op: str
    start: Start
    generation: int
    low: LogKey
    floor: LogKey
    shown: list[Shown]
    is_strict: bool


class Stored(NamedTuple):
    """A message of the true log."""

    id: LogKey
    label: str | None
    entry: Entry
    is_hidden: bool
    page: LogKey
    is_gone: bool


@dataclasses.dataclass
class Ghost:
    """The answers of one run over one table."""

    table: WatchedTable
    acked: list[Acked] = dataclasses.field(default_factory=list)
    never: set[str] = dataclasses.field(default_factory=set)
    rolled: list[Rolled] = dataclasses.field(default_factory=list)
    stored: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    """(label, payload log, generation)."""
    answers: list[Answer] = dataclasses.field(default_factory=list)
    payloads: list[tuple[int, int, list[str], int]] = dataclasses.field(default_factory=list)
    """(generation, payload log, labels, number of stores acknowledged before the read began)."""
    replays: list[tuple[int, str, LogKey]] = dataclasses.field(default_factory=list)
    """(generation, key, first id)."""
    bounds: dict[int, LogKey] = dataclasses.field(default_factory=dict)
    """By generation: the id below which messages have expired."""
    ended_ms: int = 0
    """Lifetimes that end before this time may be ended."""
    wrong: list[str] = dataclasses.field(default_factory=list)

    def bad(self, *parts: object) -> None:
        """Record a problem; the parts make one line."""
        self.wrong.append(
            " ".join(each.hex() if isinstance(each, bytes) else str(each) for each in parts)
        )

    # The end.

    def judge(self) -> list[str]:
        """Compare all answers with the true log; return the problems."""
        self.wrong += self.table.violations
        root = self.table.root()
        logs: dict[int, list[Stored]] = {}
        last, epoch = LOG_KEY_MIN, 0
        for generation in sorted(self.table.firsts):
            log = LogId(TOPIC, generation)
            pages = self.table.chain(log)
            floor = self.table.floors[generation]
            if root is not None and (root.generation, root.state) == (generation, RootState.LIVE):
                self._judge_marks(log, pages, floor)
            messages = logs[generation] = self._judge_pages(log, pages)
            if messages:
                if messages[0].id <= last:
                    self.bad("ids do not rise over generations", messages[0].id)
                if messages[0].entry.epoch <= epoch:
                    self.bad("epochs do not rise over generations", messages[0].entry.epoch)
                last, epoch = messages[-1].id, messages[-1].entry.epoch
            self._judge_acked(generation, messages, floor)
            self._judge_payload_logs(generation, messages)
        for answer in self.answers:
            self._judge_answer(answer, logs.get(answer.generation, []))
        self._judge_references()
        return self.wrong

    def _judge_pages(self, log: LogId, pages: list[Page]) -> list[Stored]:
        out: list[Stored] = []
        last, epoch, total, prev = LOG_KEY_MIN, 0, 0, None
        for page in pages:
            if prev is not None and page.head.prev != prev:
                self.bad("prev is wrong", page.key)
            if page.head.epoch < epoch:
                self.bad("epochs fall along the chain", page.key)
            prev = page.key
            for entry in page.entries:
                if entry.first <= last or entry.first < page.key:
                    self.bad("ids do not rise", entry.first)
                if entry.epoch < epoch or entry.epoch > page.head.epoch:
                    self.bad("an entry's epoch is wrong", entry.first)
                last, epoch, total = entry.last, entry.epoch, total + entry.count
                out += _messages(entry, page)
            epoch = max(epoch, page.head.epoch)
            if page.head.total != total:
                self.bad("total is wrong", log, page.key, page.head.total, total)
            if page.entries and page.head.pointer != last:
                self.bad("a pointer is wrong", log, page.key)
            if page.head.cells != len(page.entries):
                self.bad("cells are wrong", log, page.key)
            self._judge_lives(page)
        return out

    def _judge_lives(self, page: Page) -> None:
        ends = NO_END
        for entry in page.entries:
            if entry.lifetime_ms is not None:
                end_ms = timestamp_of(entry.last) + entry.lifetime_ms
                if not entry.is_stub:
                    ends = min(ends, end_ms)
                elif end_ms >= self.ended_ms:
                    self.bad("a life was ended too early", entry.first)
        if page.head.first_end_ms > ends:
            self.bad("first_end is too late", page.key)

    def _judge_marks(self, log: LogId, pages: list[Page], floor: LogKey) -> None:
        rows = self.table.spaces[Space.MESSAGES]
        keys: dict[bytes, Mark] = {}
        marked = pages[-1].head.marked if pages else LOG_KEY_MIN
        for page in pages:
            for entry in page.entries:
                for mark in entry.marks:
                    if mark.key in keys:
                        self.bad("one key, two appends", mark.key, mark.first)
                    keys[mark.key] = mark
                    is_due = entry.last <= marked or page.key < floor
                    if is_due and rows.get(mark_key(log, mark)).head is None:
                        self.bad("a mark at or below marked has no row", mark.first)
        for generation, key, first in self.replays:
            if generation == log.generation:
                known = keys.get(key.encode().ljust(16, b"."))
                if known is None or known.first != first:
                    self.bad("a replay of an append that is not in the log", key, first)

    def _judge_acked(self, generation: int, messages: list[Stored], floor: LogKey) -> None:
        known: dict[str, Stored] = {}
        for message in messages:
            if message.label is None:
                continue
            if message.label in known:
                self.bad("twice in the log", message.label)
            known[message.label] = message
            self._judge_message(generation, message, floor)
        stubs = {message.id for message in messages if message.label is None}
        for acked in self.acked:
            if acked.generation != generation:
                continue
            found = known.get(acked.label)
            if found is None and not any(
                e.entry.first <= acked.id <= e.entry.last for e in messages if e.id in stubs
            ):
                self.bad("acknowledged append lost", acked.label)
            elif found is not None and found.id != acked.id:
                self.bad("acknowledged with another id", acked.label)

    def _judge_message(self, generation: int, message: Stored, floor: LogKey) -> None:
        if message.label in self.never:
            self.bad("refused, and present in the log", message.label)
        pointer = message.entry.pointer
        if (
            pointer is not None
            and message.page >= floor
            and not message.is_hidden
            and any(r.covers(generation, pointer, message.id) for r in self.rolled)
        ):
            self.bad("rolled back, visible in storage", message.label)
        if message.page < floor and message.id >= self.bounds.get(generation, LOG_KEY_MIN):
            self.bad("below the floor, not expired", message.label)

    def _judge_payload_logs(self, generation: int, messages: list[Stored]) -> None:
        numbers = [m.entry.number for m in messages if m.entry.number is not None]
        if len(set(numbers)) < len(numbers):
            self.bad("one payload log, two references", numbers)
        for number in {n for _, n, g in self.stored if g == generation} | set(numbers):
            pages = self.table.chain(LogId(TOPIC, generation, number))
            have = {m.label for m in self._judge_pages(LogId(TOPIC, generation, number), pages)}
            if number in numbers:
                for label, stored, of in self.stored:
                    if (stored, of) == (number, generation) and label not in have:
                        self.bad("acknowledged store not in the published log", label)

    def _judge_references(self) -> None:
        for generation, number, labels, stores in self.payloads:
            for label, stored, of in self.stored[:stores]:
                if (of, stored) == (generation, number) and label not in labels:
                    self.bad("payloads read without an acknowledged store", label)

    # Readings.

    def _judge_answer(self, answer: Answer, messages: list[Stored]) -> None:
        op, got = answer.op, [shown.id for shown in answer.shown]
        by_id = {message.id: message for message in messages}
        stubs = [message for message in messages if message.label is None]
        for stub in stubs:
            of_stub = (key for key in got if stub.entry.first <= key <= stub.entry.last)
            by_id.update(dict.fromkeys(of_stub, stub))
        for shown in answer.shown:
            there = by_id.get(shown.id)
            if there is None or (there.label is not None and there.label != shown.label):
                self.bad(op, "shows a message that is not in the log", shown.label)
        if got != sorted(set(got)):
            self.bad(op, "is out of order")
        between = (
            (got[0], got[-1])
            if got and op == "backwards"
            else (answer.low, got[-1] if got else b"")
        )
        have = set(got)
        for message in messages:
            is_between = between[0] <= message.id <= between[1]
            is_shown = message.id in have or message.label is None
            if message.page >= answer.floor and is_between and not is_shown:
                self.bad(op, "skips", message.label)
        if answer.is_strict and answer.start.generation == answer.generation:
            self._judge_strictly(answer, by_id, have)

    def _judge_strictly(
        self, answer: Answer, by_id: dict[LogKey, Stored], have: set[LogKey]
    ) -> None:
        for acked in self.acked[: answer.start.acked]:
            there = by_id.get(acked.id)
            if (
                acked.generation == answer.generation
                and acked.id >= answer.low
                and acked.id not in have
                and there is not None
                and there.label is not None
                and there.page >= answer.floor
            ):
                self.bad(answer.op, "misses a message that was acknowledged before", acked.label)
        rolled = self.rolled[: answer.start.rolled]
        for shown in answer.shown:
            there = by_id.get(shown.id)
            if there is None or shown.is_hidden or there.entry.pointer is None:
                continue
            if any(r.covers(answer.generation, there.entry.pointer, shown.id) for r in rolled):
                self.bad(answer.op, "shows a message that was rolled back before", shown.label)


def _messages(entry: Entry, page: Page) -> list[Stored]:
    if entry.is_stub:
        return [Stored(entry.last, None, entry, False, page.key, page.is_gone)]
    return [
        Stored(
            entry.id(place),
            entry.payload(place).decode(),
            entry,
            entry.is_rolled_back(entry.id(place)),
            page.key,
            page.is_gone,
        )
        for place in range(entry.count)
    ]

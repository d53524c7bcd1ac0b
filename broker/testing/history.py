"""Histories: what clients asked, and what they were told, one line each.

::

    {"process", "type": invoke|ok|fail|unknown, "op", "topic", "value", "id", "node", "epoch", "time_ns"}

A history is written by the test's clients, never by a node: what a node believes is not evidence. A
**process** does one thing at a time, so a line of type ok, fail or unknown ends its latest invoke. *fail*
means certainly not done; *unknown* that nobody can say, now or later. The order of lines is the order of
what happened; histories of several machines are merged by ``time_ns`` first.

The values, by operation (ids are hex, of rows: 20 digits)::

    publish      {"payloads", "pointer", "key", "generation"}     ok: id = first row, {"last"}
    rollback     {"pointer", "first", "last", "generation"}       ok: {"rows"}
    store        {"payloads", "number", "generation"}             ok: id = first row, {"last"}
    reference    {"number", "generation"}                         ok: id = the reference's row
    read         {"after", "through", "reverse", "cursor", "generation"}
                 ok: {"rows": [[id, payload or null, pointer or null]], "seen", "floor", "pointer"}
    payloads     {"number", "generation"}                         ok: {"rows": [[id, payload]]}
    floor        {"floor", "generation"}      delete, create  {"generation"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

EventType = Literal["invoke", "ok", "fail", "unknown"]
Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    process: str
    type: EventType
    op: str
    topic: str
    value: Value
    id: str | None
    node: str | None
    epoch: int | None
    time_ns: int


@dataclass(slots=True)
class Call:
    """An invoke and its end. Times are places in the history; ``ended`` None is never."""

    process: str
    op: str
    topic: str
    asked: Value
    invoked: int
    ended: int | None = None
    outcome: Literal["ok", "fail", "unknown"] = "unknown"
    answer: Value | None = None
    id: str | None = None
    node: str | None = None
    epoch: int | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it was acknowledged."""
        return self.outcome == "ok"

    @property
    def told(self) -> Value:
        """The answer's value; empty if there was none."""
        return self.answer or {}

    @property
    def end(self) -> float:
        """When it ended, for comparisons."""
        return float("inf") if self.ended is None else self.ended


class History:
    """Collects lines in the order of what happens."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Start empty; ``now_ns`` gives monotonic time."""
        self.events: list[Event] = []
        self._now_ns = now_ns

    def invoke(self, process: str, op: str, topic: str, value: Value) -> Ending:
        """Write that a process asks for something; end it by what is returned."""
        self._write(Event(process, "invoke", op, topic, value, None, None, None, self._now_ns()))
        return Ending(self, process, op, topic)

    def _write(self, event: Event) -> None:
        self.events.append(event)

    def calls(self) -> list[Call]:
        """Return the calls of this history."""
        return calls_of(self.events)

    def save(self, path: Path) -> None:
        """Write the lines to a file."""
        path.write_text("".join(json.dumps(asdict(event)) + "\n" for event in self.events))


class Ending:
    """How a call ends: once."""

    def __init__(self, history: History, process: str, op: str, topic: str) -> None:
        """Belong to one invoke."""
        self._history = history
        self._process = process
        self._op = op
        self._topic = topic
        self.node: str | None = None
        self.epoch: int | None = None
        self.is_open = True

    def ok(self, value: Value, identifier: str | None = None) -> None:
        """Write that it was done."""
        self._end("ok", value, identifier)

    def fail(self, why: str) -> None:
        """Write that it was certainly not done."""
        self._end("fail", {"why": why}, None)

    def unknown(self, why: str) -> None:
        """Write that it may have been done."""
        self._end("unknown", {"why": why}, None)

    def _end(self, kind: EventType, value: Value, identifier: str | None) -> None:
        assert self.is_open, "a call ends once"
        self.is_open = False
        history = self._history
        history.events.append(
            Event(
                self._process,
                kind,
                self._op,
                self._topic,
                value,
                identifier,
                self.node,
                self.epoch,
                history._now_ns(),  # noqa: SLF001  One half of the history.
            )
        )


def load(path: Path) -> list[Event]:
    """Read lines that ``save`` or any client wrote."""
    with path.open() as lines:
        return [Event(**json.loads(line)) for line in lines]


def calls_of(events: Iterable[Event]) -> list[Call]:
    """Pair invokes with their ends, in the order of the invokes."""
    calls: list[Call] = []
    pending: dict[str, Call] = {}
    for place, event in enumerate(events):
        if event.type == "invoke":
            call = Call(event.process, event.op, event.topic, event.value, place)
            pending[event.process] = call
            calls.append(call)
            continue
        call = pending.pop(event.process)
        call.ended = place
        call.outcome = event.type
        call.answer = event.value
        call.id, call.node, call.epoch = event.id, event.node, event.epoch
    return calls


def of(calls: Sequence[Call], *ops: str) -> list[Call]:
    """Return the calls of some operations."""
    return [call for call in calls if call.op in ops]

"""Histories: what clients asked, and what they were told, one line each.

::

    {"process", "type": invoke|ok|fail|unknown, "op", "topic", "value", "id", "node", "epoch", "time_ns"}

A history is written by the test's clients, never by a node: what a node believes is not evidence. A
**process** does one thing at a time, so a line of type ok, fail or unknown ends its latest invoke. *fail*
means certainly not done; *unknown* that nobody can say, now or later: a time-out, a cancelled call, a
reply that says so. The order of lines is the order of what happened; histories of several machines are
merged by ``time_ns`` first. ``node`` and ``epoch`` of an ok say who answered, where the client was told.

**Ids** are hex. A row has 20 digits; a message with a stored payload has 40 (its row, then the payload's
row). 40 digits that end in 20 zeros mean the same as the first 20. ``id`` of an ok is "" and ``last`` ""
(or absent) where a client is not told: the checkers then find the place by the payload, so each payload
is unique in its topic. A ``generation`` of 0, or none, is one that the process can't know: the checkers
go by the time of creates and deletes of that topic, which then have one process that does them.

Values by operation; what is marked ? may be left out or null. ``fail`` and ``unknown``: {"why"}. ::

    op          asked                                                     told by ok

    Publishing. topic is "namespace:topic" or any name, the same for all.
    publish     payloads, generation, pointer?, key?, ttl_ms?,            id = first row, last, replayed?
                publisher?, number?, until_ms?
    store       payloads, number, generation, key?                        id = first row, last
    reference   number, generation, key?                                  id = the reference's row, replayed?
    rollback    pointer, first?, last?, generation                        rows?

    Reading
    read        after?, through?, time?, reverse?, limit?, wait?,         rows: [[id, payload?, pointer?, others?]],
                snapshot?, view?, cursor?, generation, at_ms?             seen?, floor?, pointer?, at_ms?
    payloads    number, generation                                        rows: [[id, payload]]

    Topics
    create      generation, ttl_s?                                        generation?
    update      generation, ttl_s?
    delete      generation
    floor       floor, generation                                         floor

    Transactions. topic is "": they span topics. A *pointer* is the transaction's write pointer.
    begin                                                                 pointer, snapshot
    commit, abort, invalidate      pointer

    Registers (metadata). topic is "". Every value that is written is unique for its key; none = absent.
    cas         key, expected?, value                                     version?
    get         key                                                       value?, version?

    Rowlogs. topic is "". Each call of a listener is a process of its own.
    row-put     log, row                                                  seq
    row-offer   log, row, seq, subscription, processor                    done
    row-halt    processor                                                 it was killed, stopped, or has ended
    row-final   log, subscriptions                                        it was waited for, until all was done

    Leaders
    elect       node                                                      what was asked for was begun
    leader                                                                node and epoch of the line

    Faults. process "nemesis ...", topic "": one process for each that lasts beside others.
    fault       kind, detail?, promise_ms?                                happened, and evidence by name

``publisher`` names whose order a publish belongs to and ``number`` its place there, for those who send the
next before the last is answered (each then has a process of its own, "p1/0", "p1/1"); by default the
process, and the order of its invokes. Leave ``publisher`` to a new name where no order is promised: after
a retry of one of several that are under way. ``ttl_ms`` is the message's own life; ``until_ms``, by the
wall clock of whoever asks, the moment after which nothing of the request is to be begun. ``replayed`` says that
the answer was given before, under the same key; ``key`` is unique to one request, however often it is sent.

``after`` excludes, ``through`` includes, both default to all there is; ``time`` (ms since 1970) asks for
the rows published then or later, in place of ``after``. ``view``: *rows* (the default: inline messages,
and references, whose payload is null), *messages* (what a poll gives: inline and stored messages), *all*
(what browsing gives: all three). An answer vouches for everything from ``after`` up to ``seen``, by default its last
id: rows that are missing there are not in the log. ``cursor`` names a consumer: each of its reads goes on
where the last one that showed something ended. ``floor`` and ``pointer`` are the log's, where the reader
sees its root and its last head. Ages are counted by ``time_ns``; ``at_ms``, the wall clock of the reader, is
left out where what is told may have been read before it was asked for (the rest of a stream): its age
when it was read is not known then. The pointer of a row is negative when rolled back, null if there is none or it is not shown. ``others`` is there if a
message has another key or other headers than it was published with, and says which. A *snapshot*
is {"transaction_id", "read_pointer", "write_pointer", "invalids", "in_progress", "checkpoint_pointers",
"visibility"}, see ``snapshot_value``.

The process ``final`` reads every topic to its end when everything is healed, in as many pages as it
takes; what it shows is the log as it ended. ``final@NODE`` does the same through that node, in the same
view: all must show the same. Registers are got likewise, each by ``final@NODE``. Finals with a snapshot are compared with each other by snapshot, not with
those without. A final read that does not end ok is a violation by itself: ask again before giving up.

``promise_ms`` of a fault: how long at most nothing may be acknowledged while it lasts; none = nothing is
promised until it is healed. Its ok is written when it is healed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from broker.model import Snapshot

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
class Operation:
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
    invoked_ns: int = 0
    ended_ns: int | None = None

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
        self.write(Event(process, "invoke", op, topic, value, None, None, None, self._now_ns()))
        return Ending(self, process, op, topic)

    def write(self, event: Event) -> None:
        """Add a line."""
        self.events.append(event)

    def taken(self) -> list[Event]:
        """Return the lines since the last time, a segment, and forget them.

        What is under way ends in a later segment; see ``checkers.Judge``.
        """
        events, self.events = self.events, []
        return events

    def calls(self) -> list[Operation]:
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
        history.write(
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


class Pairing:
    """Pairs lines with the invokes that they end, one line after the other.

    It remembers the calls that are under way, and nothing else.
    """

    def __init__(self) -> None:
        """Begin where nothing is under way."""
        self.pending: dict[str, Operation] = {}
        self._place = -1

    def add(self, event: Event) -> Operation:
        """Return the call that a line begins (``ended`` is None) or ends."""
        self._place += 1
        if event.type == "invoke":
            call = Operation(event.process, event.op, event.topic, event.value, self._place)
            call.invoked_ns = event.time_ns
            self.pending[event.process] = call
            return call
        call = self.pending.pop(event.process)
        call.ended, call.ended_ns = self._place, event.time_ns
        call.outcome = event.type
        call.answer = event.value
        call.id, call.node, call.epoch = event.id, event.node, event.epoch
        return call


def calls_of(events: Iterable[Event]) -> list[Operation]:
    """Pair invokes with their ends, in the order of the invokes."""
    pairing = Pairing()
    paired = [pairing.add(event) for event in events]
    return sorted({call.invoked: call for call in paired}.values(), key=lambda call: call.invoked)


WRITES: Final = ("publish", "cas", "row-put")
"""What changes something for whoever reads later; that some were acknowledged makes a history worth judging."""


def who_owes(op: str, topic: str, asked: Value) -> str | None:
    """Return who owes an answer to a call by the availability that is promised; None if nobody does.

    That is the topic of a publish, the register of a compare-and-set or a get, and the rowlog of a put.
    """
    if op == "publish":
        return topic
    if op == "row-put":
        return f"rowlog {asked['log']}"
    return f"register {asked['key']}" if op in ("cas", "get") else None


def snapshot_value(snapshot: Snapshot) -> Value:
    """Return a snapshot as lines have it."""
    return {
        "transaction_id": snapshot.transaction_id,
        "read_pointer": snapshot.read_pointer,
        "write_pointer": snapshot.write_pointer,
        "invalids": list(snapshot.invalids),
        "in_progress": list(snapshot.in_progress),
        "checkpoint_pointers": list(snapshot.checkpoint_pointers),
        "visibility": int(snapshot.visibility),
    }


def of(calls: Sequence[Operation], *ops: str) -> list[Operation]:
    """Return the calls of some operations."""
    return [call for call in calls if call.op in ops]

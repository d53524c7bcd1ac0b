"""Histories record the requests of clients and their answers, one line each.

::

    {"process", "type": invoke|ok|fail|unknown, "op", "topic", "value", "id", "node", "epoch", "time_ns"}

The clients of the test write the history. A node never does: a node's belief is not evidence. A
**process** makes one call at a time, so a line of type ok, fail or unknown ends its latest invoke. *fail*
means that the call has certainly had no effect. *unknown* means that the effect is not known, now or
later: after a time-out, a cancelled call, or an answer that says so. Lines are in the order of the events.
Histories of several machines are first merged by ``time_ns``. ``node`` and ``epoch`` of an ok name the
answering node and its epoch, if the client was told.

**Ids** are hex. A log key has 20 digits. A message with a stored payload has 40: its key, then the payload's
key. 40 digits that end in 20 zeros mean the same as the first 20. ``id`` of an ok is "", and ``last`` is ""
or absent, if the client is not told. The checkers then find the place by the payload, so each payload is
unique in its topic. A ``generation`` of 0, or none, means that the process can't know it. The checkers then
go by the time of creates and deletes, and one process must do all creates and deletes of that topic.

Values by operation. A field marked ? may be left out or null. ``fail`` and ``unknown`` have {"why"}. ::

    op          value of the invoke                                       value of the ok

    Publishing. topic is "namespace:topic" or any name, the same for all.
    publish     payloads, generation, pointer?, key?, ttl_ms?,            id = first key, last, replayed?
                publisher?, number?, until_ms?
    store       payloads, number, generation, key?                        id = first key, last
    reference   number, generation, key?                                  id = the reference's key, replayed?
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

    Registers (metadata). topic is "". Every written value is unique for its key; none = absent.
    cas         key, expected?, value                                     version?
    get         key                                                       value?, version?

    Rowlogs. topic is "". Each call of a listener is a process of its own.
    row-put     log, row                                                  seq
    row-offer   log, row, seq, subscription, processor                    done
    row-halt    processor                                                 it was killed, stopped, or has ended
    row-final   log, subscriptions                                        the run has waited for the messages

    Leaders
    elect       node                                                      the election has begun
    leader                                                                node and epoch of the line

    Faults. process "nemesis ...", topic "". Faults that overlap have different processes.
    fault       kind, detail?                                             happened, twins?, and evidence by name

Publishes:

* ``publisher`` and ``number`` give the order of a publisher's messages. They are for a publisher with
  several requests in flight, which has one process for each ("p1/0", "p1/1"). By default, the publisher is
  the process, and the order is that of its invokes.
* A publish without a promised order gets a new ``publisher``: for example, the retry of one of several
  requests in flight.
* ``ttl_ms`` is the message's own life.
* ``until_ms`` is the request's deadline, by the client's wall clock. No work on the request may begin later.
* ``key`` is unique to one request, also when it is sent again. ``replayed`` marks a repeated answer under
  the same key.

Reads:

* ``after`` excludes, ``through`` includes. By default the range is the whole log. ``time`` (ms since 1970)
  takes the place of ``after``: it asks for the rows published then or later.
* ``view`` is *rows* (the default: inline messages, and references with a null payload), *messages* (as a
  poll: inline and stored messages), or *all* (as browsing: all three).
* An answer covers the range from ``after`` up to ``seen``, by default its last id. A row that it does not
  show there is not in the log.
* ``cursor`` names a consumer. Each of its reads goes on where its last read with rows ended.
* ``floor`` and ``pointer`` are the log's, if the reader sees the log's root and last head.
* Ages are counted by ``time_ns``. ``at_ms`` is the reader's wall clock. It is left out if the answer may
  have been read before the request (the rest of a stream), because the age at reading is not known then.
* The pointer of a row is negative after a rollback. It is null if there is none, or if it is not shown.
* ``others`` is present if the key or headers of a message are not those of its publish, and names them.
* A *snapshot* is {"transaction_id", "read_pointer", "write_pointer", "invalids", "in_progress",
  "checkpoint_pointers", "visibility"}, see ``snapshot_value``.

Final reads:

* After healing, the process ``final`` reads every topic to its end, in any number of pages. Its reads show
  the log as it ended.
* ``final@NODE`` does the same through that node, in the same view. All must show the same.
* ``final@NODE`` also gets each register.
* Final reads with a snapshot are compared with those of the same snapshot only.
* A final read that does not end ok is itself a violation, so the client retries it first.

``twins`` of a fault names the instance ids with which two nodes went on at once.

While a fault lasts, a topic may acknowledge nothing for any time. The ok of a fault is written when the fault is
healed.
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
    """One line of a history."""

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
    """An invoke and its end. ``invoked`` and ``ended`` are line numbers; ``ended`` is None without an end."""

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
        """True if it was acknowledged."""
        return self.outcome == "ok"

    @property
    def told(self) -> Value:
        """Return the answer's value; empty if there is no answer."""
        return self.answer or {}


class History:
    """Collects lines in the order of the events."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Start empty; ``now_ns`` returns monotonic time."""
        self.events: list[Event] = []
        self._now_ns = now_ns

    def invoke(self, process: str, op: str, topic: str, value: Value) -> Ending:
        """Write the beginning of a call, and return the object that writes its end."""
        self.write(Event(process, "invoke", op, topic, value, None, None, None, self._now_ns()))
        return Ending(self, process, op, topic)

    def write(self, event: Event) -> None:
        """Add a line."""
        self.events.append(event)

    def calls(self) -> list[Operation]:
        """Return the calls of this history."""
        return calls_of(self.events)

    def save(self, path: Path) -> None:
        """Write the lines to a file."""
        path.write_text("".join(json.dumps(asdict(event)) + "\n" for event in self.events))


class Ending:
    """Writes the end of one call, once."""

    def __init__(self, history: History, process: str, op: str, topic: str) -> None:
        """Begin for one invoke."""
        self._history = history
        self._process = process
        self._op = op
        self._topic = topic
        self.node: str | None = None
        self.epoch: int | None = None
        self.is_open = True

    def ok(self, value: Value, identifier: str | None = None) -> None:
        """Write that the call was done."""
        self._end("ok", value, identifier)

    def fail(self, why: str) -> None:
        """Write that the call has certainly had no effect."""
        self._end("fail", {"why": why}, None)

    def unknown(self, why: str) -> None:
        """Write that the call may have been done."""
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
                history._now_ns(),  # noqa: SLF001  Ending is a part of History.
            )
        )


def load(path: Path) -> list[Event]:
    """Read the lines of a file that ``save`` or a client wrote."""
    with path.open() as lines:
        return [Event(**json.loads(line)) for line in lines]


class Pairing:
    """Pairs each line with the invoke that it ends, line by line.

    It keeps only the calls in flight.
    """

    def __init__(self) -> None:
        """Begin without a call in flight."""
        self.pending: dict[str, Operation] = {}
        self._place = -1

    def add(self, event: Event) -> Operation:
        """Return the call that this line begins (``ended`` is None) or ends."""
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
"""The operations that change what later reads show. A history is judged only if one was acknowledged."""


def availability_name(op: str, topic: str, asked: Value) -> str | None:
    """Return the name of the thing whose promised availability a call measures; None if there is none.

    It is the topic of a publish, the register of a compare-and-set or a get, or the rowlog of a put.
    """
    if op == "publish":
        return topic
    if op == "row-put":
        return f"rowlog {asked['log']}"
    return f"register {asked['key']}" if op in ("cas", "get") else None


def snapshot_value(snapshot: Snapshot) -> Value:
    """Return a snapshot as a history's lines contain it."""
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
    """Return the calls of the given operations."""
    return [call for call in calls if call.op in ops]

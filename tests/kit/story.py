"""Write small histories by hand, to test the violations that a checker finds and the histories that it accepts.

::

    story = Story()
    story.publish(1, "a", process="p").publish(2, "b", process="p")
    story.final((1, "a"))
    story.found()                   # {"lost_tail"}

Rows are numbers here, and payloads are words. Calls follow one another, unless ``begin`` leaves a call open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from chaos.checkers import Promises, Verdict, check
from chaos.history import Ending, History, Value

TOPIC = "ns:t"
ShownRow = (
    tuple[int, str | None]
    | tuple[int, str | None, int | None]
    | tuple[int, str | None, int | None, str]
)


def rid(number: int) -> str:
    """Return a row's id."""
    return f"{number:020x}"


def snapshot(
    read_pointer: int,
    *,
    invalids: Sequence[int] = (),
    in_progress: Sequence[int] = (),
    own: int = 0,
) -> Value:
    """Return a snapshot."""
    return {
        "transaction_id": own,
        "read_pointer": read_pointer,
        "write_pointer": own,
        "invalids": list(invalids),
        "in_progress": list(in_progress),
        "checkpoint_pointers": [],
        "visibility": 1,
    }


class Story:
    """Writes a history; most methods write one whole call and return the story."""

    def __init__(self, promises: Promises | None = None) -> None:
        """Begin at time 0, with lines one nanosecond apart."""
        self.history = History(self._now_ns)
        self.promises = promises
        self._ms = 0
        self._names = 0

    def _now_ns(self) -> int:
        return self._ms * 1_000_000 + len(self.history.events)

    def at(self, ms: int) -> Self:
        """Set the time of the next calls."""
        self._ms = ms
        return self

    def begin(
        self, op: str, asked: Value, process: str | None = None, topic: str = TOPIC
    ) -> Ending:
        """Begin a call, by a new process unless one is named."""
        self._names += 1
        asked = {"generation": 1, **asked} if topic else asked
        return self.history.invoke(process or f"{op} {self._names}", op, topic, asked)

    def done(
        self,
        op: str,
        asked: Value,
        told: Value | None = None,
        outcome: str = "ok",
        *,
        process: str | None = None,
        topic: str = TOPIC,
    ) -> Self:
        """Add a call that is answered at once."""
        ending = self.begin(op, asked, process, topic)
        if outcome == "ok":
            ending.ok(told or {})
        else:
            (ending.fail if outcome == "fail" else ending.unknown)("the story has it so")
        return self

    # Publishing.

    def publishing(self, *payloads: str, process: str | None = None, **asked: Any) -> Ending:
        """Begin a publish; ``answer`` ends it."""
        topic = asked.pop("topic", TOPIC)
        value = {"payloads": list(payloads), "pointer": None, "key": None, **asked}
        return self.begin("publish", value, process, topic)

    def answer(
        self,
        ending: Ending,
        row: int | None = None,
        *,
        last: int | None = None,
        epoch: int = 1,
        outcome: str = "ok",
        **told: Any,
    ) -> Self:
        """End a publish; without a row the answer has no id."""
        ending.node, ending.epoch = "n", epoch
        if outcome != "ok":
            (ending.fail if outcome == "fail" else ending.unknown)("the story has it so")
        elif row is None:
            ending.ok(told, "")
        else:
            ending.ok({"last": rid(last or row), **told}, rid(row))
        return self

    def publish(self, row: int | None, *payloads: str, **options: Any) -> Self:
        """Add a publish and its answer. Options of ``answer`` go to the answer, all others to the request."""
        answers = {
            name: options.pop(name)
            for name in ("last", "epoch", "outcome", "replayed")
            if name in options
        }
        return self.answer(self.publishing(*payloads, **options), row, **answers)

    def rollback(self, pointer: int, first: int, last: int, outcome: str = "ok") -> Self:
        """Roll rows back."""
        asked = {"pointer": pointer, "first": rid(first), "last": rid(last)}
        return self.done("rollback", asked, {"rows": 1}, outcome)

    # Reading.

    def read(
        self,
        rows: Sequence[ShownRow],
        process: str = "reader",
        *,
        after: int = 0,
        seen: int | None = None,
        **asked: Any,
    ) -> Self:
        """Add a read with rows: (id, payload), or with pointer and attributes. ``floor`` and ``node`` go to the answer."""
        floor, node = asked.pop("floor", 0), asked.pop("node", None)
        topic = asked.pop("topic", TOPIC)
        shown = [[rid(row[0]), *row[1:], *([None] * (3 - len(row)))] for row in rows]
        told: Value = {"rows": shown, "floor": rid(floor), "at_ms": self._ms}
        if seen is not None:
            told["seen"] = rid(seen)
        if "time" not in asked:
            asked = {"after": rid(after), **asked}
        ending = self.begin("read", {"at_ms": self._ms, **asked}, process, topic)
        ending.node = node
        ending.ok(told)
        return self

    def final(self, *rows: ShownRow, node: str = "", **options: Any) -> Self:
        """Add the final read of the log."""
        return self.read(rows, f"final@{node}" if node else "final", **options)

    # Transactions and registers: no topic.

    def decide(self, op: str, pointer: int, outcome: str = "ok") -> Self:
        """Commit, abort or invalidate a transaction."""
        return self.done(op, {"pointer": pointer}, outcome=outcome, topic="")

    def cas(self, expected: str | None, value: str, outcome: str = "ok") -> Self:
        """Change the register."""
        asked = {"key": "k", "expected": expected, "value": value}
        return self.done("cas", asked, outcome=outcome, topic="")

    def get(self, value: str | None, process: str | None = None, **told: Any) -> Self:
        """Read the register."""
        told["value"] = value
        return self.done("get", {"key": "k"}, told, process=process, topic="")

    def row_put(self, seq: int | None, outcome: str = "ok") -> Self:
        """Put a rowlog message into its row."""
        asked = {"log": "l", "row": "r"}
        return self.done("row-put", asked, {"seq": seq}, outcome=outcome, topic="")

    def offering(self, seq: int, processor: str = "one") -> Ending:
        """Begin to offer a message to the rowlog's subscription."""
        asked = {"log": "l", "row": "r", "seq": seq, "subscription": "s", "processor": processor}
        return self.begin("row-offer", asked, topic="")

    def offer(self, seq: int, *, done: bool = True) -> Self:
        """Offer a message; ``done`` is the subscription's answer."""
        self.offering(seq).ok({"done": done})
        return self

    def row_final(self) -> Self:
        """Add the final wait for the whole rowlog."""
        asked = {"log": "l", "subscriptions": ["s"]}
        return self.done("row-final", asked, process="final", topic="")

    # The verdict.

    def verdict(self) -> Verdict:
        """Return the verdict of the checkers."""
        return check(self.history.calls(), self.promises)

    def found(self) -> set[str]:
        """Return the names of the violations."""
        return self.verdict().names

"""Run a chain as Spark does: with records in micro-batches, and a watermark that the test sets."""

from collections.abc import Callable, Sequence
from typing import Any

from broker.streams.failures import Failures
from broker.streams.operators import Cells, Chain, KeyedOperator, Windowed, packed, unpacked
from broker.streams.stateless_steps import Step
from broker.streams.stream_records import Letter, StreamRecord
from broker.streams.windows import Windows


class Run:
    """A chain over the records of any keys. Between two calls its state is bytes, as in Spark's store."""

    def __init__(
        self, *parts: KeyedOperator | Step, topic: str | None = "dead", is_timed: bool = True
    ) -> None:
        self.chain = Chain(parts, Failures("job", topic))
        self.states: dict[Any, bytes] = {}
        self.watermark_ms = 0
        self._number = 0

    def batch(self, *given: tuple[Any, Any, int], side: int = 0) -> list[StreamRecord | Letter]:
        """Take records (key, value, time in ms) in one micro-batch."""
        of: dict[Any, list[StreamRecord]] = {}
        for key, value, time_ms in given:
            self._number += 1
            record = StreamRecord(value, b"%020d" % self._number, time_ms, key)
            record.side = side
            of.setdefault(key, []).append(record)
        found: list[StreamRecord | Letter] = []
        for key, records in of.items():
            cells = self.cells_of(key)
            found += self.chain.take(records, cells, self.watermark_ms)
            self.states[key] = packed(cells)
        return found

    def reach(self, watermark_ms: int) -> list[StreamRecord | Letter]:
        """Move the watermark, and expire the keys that are due."""
        self.watermark_ms = watermark_ms
        found: list[StreamRecord | Letter] = []
        for key in self.states:
            cells = self.cells_of(key)
            due_ms = self.chain.due_ms(cells)
            if due_ms is not None and due_ms <= watermark_ms:
                found += self.chain.expire(key, cells, watermark_ms)
                self.states[key] = packed(cells)
        return found

    def cells_of(self, key: Any) -> Cells:
        return unpacked(self.states[key]) if key in self.states else {}


def values(found: Sequence[StreamRecord | Letter]) -> list[Any]:
    assert all(isinstance(each, StreamRecord) for each in found), found
    return [each.value for each in found if isinstance(each, StreamRecord)]


def results(found: Sequence[StreamRecord | Letter]) -> list[Any]:
    """Return keys, windows in seconds, and values."""
    rows = []
    for each in found:
        assert isinstance(each, StreamRecord), each
        assert each.window is not None
        rows.append(
            (each.key, each.window.start_ms // 1000, each.window.end_ms // 1000, each.value)
        )
    return rows


def letters(found: Sequence[StreamRecord | Letter]) -> list[Letter]:
    return [each for each in found if isinstance(each, Letter)]


def windowed(
    make: Callable[[], Any],
    windows: Windows,
    *,
    name: str = "windowed",
    select: Callable[[Any], Any] | None = None,
) -> Windowed:
    return Windowed(name, make, select, windows, "job", "late")

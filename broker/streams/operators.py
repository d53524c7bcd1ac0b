"""Operators with state, which work on the records of one key. Pure: Spark calls them through passes.py.

All operators behind one key_by are one **chain**: the output of an operator goes through the operators behind it at
once. Each operator has a **cell** of the key's state under its own name, so it does not see another's cell::

    records of a key, by their place ──> operator ──> functions ──> operator ──> … ──> out
                                            │ cell                     │ cell
    time comes: a window ends ──────────────┘                          │

A window is open until the watermark reaches its end. Then the operator emits its result, once. A record is late if
its window is closed. A record behind the watermark is not late as long as its window is open. The cells of a key are
pickled as one value.
"""

from __future__ import annotations

import copy
import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from typing_extensions import override

from broker.streams.accumulators import Accumulator
from broker.streams.failures import Failures, late_letter
from broker.streams.stateless_steps import Step, Taken, results
from broker.streams.stream_records import Letter, StreamRecord
from broker.streams.windows import SessionWindow, Sliding, Window, Windows

Cell = dict[Any, Any]
Cells = dict[str, Cell]

V = TypeVar("V")
R = TypeVar("R")


class KeyedOperator(ABC):
    """An operator that works on the records of a key, with a cell of the key's state."""

    is_timed = False
    """True if the operator waits for times."""

    def __init__(self, name: str) -> None:
        """Keep the name, under which the chain keeps the operator's state."""
        self.name = name

    @abstractmethod
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        """Yield the results of a record."""

    def due_ms(self, cell: Cell) -> int | None:
        """Return the watermark at which the chain shall call ``expire``; None: it need not."""
        return None

    def expire(self, key: Any, cell: Cell, watermark_ms: int) -> Taken:
        """Yield the results that are due."""
        yield from ()


class RunningAggregate(KeyedOperator):
    """An aggregate without windows: it gives the result so far for each record."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Accumulator[Any, Any]],
        select: Callable[[Any], Any] | None = None,
    ) -> None:
        """Keep how to make an accumulator, and which part of a value it takes."""
        super().__init__(name)
        self._make = make
        self._select = select

    @override
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        value = record.value if self._select is None else self._select(record.value)
        if value is None and self._select is not None:
            return
        found = cell.get("sum")
        if found is None:
            found = self._make()
        found.add(value)
        cell["sum"] = found
        result = found.result(None)
        if result is not None:
            yield record.having(result)


class Windowed(KeyedOperator):
    """An aggregate by window. The cell has an accumulator for each open window: ``{window: accumulator}``."""

    is_timed = True

    def __init__(
        self,
        name: str,
        make: Callable[[], Accumulator[Any, Any]],
        select: Callable[[Any], Any] | None,
        windows: Windows,
        job: str,
        late: str | None,
    ) -> None:
        """Keep the parts; late records go to the topic ``late``."""
        super().__init__(name)
        self._make = make
        self._select = select
        self._windows = windows
        self._job = job
        self._late = late

    @override
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        value = record.value if self._select is None else self._select(record.value)
        if value is None and self._select is not None:
            return
        if isinstance(self._windows, Sliding):
            yield from self._into_windows(self._windows, record, value, cell, watermark_ms)
        else:
            yield from self._into_session(self._windows, record, value, cell, watermark_ms)

    def _into_windows(
        self, windows: Sliding, record: StreamRecord, value: Any, cell: Cell, watermark_ms: int
    ) -> Taken:
        for window in windows.windows_of(record.time_ms):
            found = cell.get(window)
            if found is None:
                if window.end_ms <= watermark_ms:
                    yield self._letter(record, window)
                    continue
                found = self._make()
            found.add(value)
            cell[window] = found

    def _into_session(
        self,
        windows: SessionWindow,
        record: StreamRecord,
        value: Any,
        cell: Cell,
        watermark_ms: int,
    ) -> Taken:
        mine = windows.window_of(record.time_ms)
        near = sorted(
            each for each in cell if each.start_ms < mine.end_ms and mine.start_ms < each.end_ms
        )
        if not near and mine.end_ms <= watermark_ms:
            yield self._letter(record, mine)
            return
        together = cell[near[0]] if near else self._make()
        if len(near) > 1:  # Merge into a copy: if a merge fails, the sessions stay as they are.
            together = copy.deepcopy(together)
        for each in near[1:]:
            together.merge(cell[each])
        together.add(value)
        for each in near:
            del cell[each]
        bounds = [*near, mine]
        start, end = min(each.start_ms for each in bounds), max(each.end_ms for each in bounds)
        cell[Window(start, end)] = together

    def _letter(self, record: StreamRecord, window: Window) -> Letter:
        late = record.having(record.value)
        late.window = window
        return late_letter(self._job, self.name, self._late, late)

    @override
    def due_ms(self, cell: Cell) -> int | None:
        return min((window.end_ms for window in cell), default=None)

    @override
    def expire(self, key: Any, cell: Cell, watermark_ms: int) -> Taken:
        for window in sorted(each for each in cell if each.end_ms <= watermark_ms):
            result = cell.pop(window).result(window)
            if result is not None:
                yield StreamRecord(result, b"", window.end_ms - 1, key, window)


class State:
    """The state of a key in a processor: a value that pickle can hold, and the time of one timer."""

    def __init__(self, cell: Cell, watermark_ms: int) -> None:
        """Read and write a cell."""
        self._cell = cell
        self.watermark_ms = watermark_ms

    @property
    def value(self) -> Any:
        """The value that the processor set last; None at first."""
        return self._cell.get("value")

    @value.setter
    def value(self, value: Any) -> None:
        self._keep("value", value)

    def call_at(self, time_ms: int | None) -> None:
        """Set the timer: the job calls ``on_time`` once the watermark has reached this time; None removes the timer.

        A call from inside ``on_time`` must give a later time.
        """
        self._keep("due", time_ms)

    def _keep(self, name: str, value: Any) -> None:
        """Keep a value. Remove it if it is None, so that a key without values has no state."""
        if value is None:
            self._cell.pop(name, None)
        else:
            self._cell[name] = value


class Processor(ABC, Generic[V, R]):
    """The user's own work on the records of a key, record by record. It keeps values in ``state`` alone."""

    @abstractmethod
    def process(self, key: Any, value: V, time_ms: int, state: State) -> Iterable[R]:
        """Return the results of a record."""

    def on_time(self, key: Any, time_ms: int, state: State) -> Iterable[R]:
        """Return the results of a timer, which ``state.call_at`` has set."""
        return ()


class ProcessorOperator(KeyedOperator):
    """The operator that runs a processor."""

    is_timed = True

    def __init__(self, name: str, processor: Processor[Any, Any]) -> None:
        """Keep the processor."""
        super().__init__(name)
        self._processor = processor

    @override
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        state = State(cell, watermark_ms)
        given = self._processor.process(record.key, record.value, record.time_ms, state)
        for value in given or ():
            yield record.having(value)

    @override
    def due_ms(self, cell: Cell) -> int | None:
        due: int | None = cell.get("due")
        return due

    @override
    def expire(self, key: Any, cell: Cell, watermark_ms: int) -> Taken:
        due_ms = cell.get("due")
        if due_ms is None or due_ms > watermark_ms:
            return
        del cell["due"]
        given = self._processor.on_time(key, due_ms, State(cell, watermark_ms))
        for value in given or ():
            yield StreamRecord(value, b"", due_ms, key)


class Chain:
    """Operators and functions behind one key_by, in their order."""

    def __init__(self, parts: Sequence[KeyedOperator | Step], failures: Failures) -> None:
        """Keep the parts; the first is an operator."""
        self.parts = parts
        self._failures = failures

    @property
    def is_timed(self) -> bool:
        """Return whether any part waits for times."""
        return any(isinstance(part, KeyedOperator) and part.is_timed for part in self.parts)

    def take(
        self, given: Sequence[StreamRecord | Letter], cells: Cells, watermark_ms: int
    ) -> Taken:
        """Yield the results of a key's records, and letters as they are; ``cells`` is the key's state. Raises Failed."""
        records = [each for each in given if isinstance(each, StreamRecord)]
        yield from (each for each in given if isinstance(each, Letter))
        for record in sorted(records, key=operator.attrgetter("at")):
            yield from self._run(record, cells, watermark_ms, 0)

    def unreadable(self, record: StreamRecord, error: BaseException) -> Letter:
        """Return the letter of a record whose value can't be unpickled here. Raises Failed."""
        return self._failures.letter("decode", self.parts[0].name, record, error)

    def expire(self, key: Any, cells: Cells, watermark_ms: int) -> Taken:
        """Yield the results that are due for a key. Raises Failed."""
        for place, part in enumerate(self.parts):
            if not isinstance(part, KeyedOperator) or part.name not in cells:
                continue
            cell, before_ms = cells[part.name], None
            # Repeat while the due time grows. More may be due after a window that failed, or after a new timer.
            while (due_ms := part.due_ms(cell)) is not None and due_ms <= watermark_ms:
                if before_ms is not None and due_ms <= before_ms:
                    break
                before_ms = due_ms
                given = part.expire(key, cell, watermark_ms)
                record = StreamRecord(None, b"", due_ms, key)
                yield from self._guarded(part.name, record, given, cells, None, place)

    def due_ms(self, cells: Cells) -> int | None:
        """Return the watermark at which Spark shall call ``expire`` for a key; None: it need not."""
        found = [
            due
            for part in self.parts
            if isinstance(part, KeyedOperator)
            and part.name in cells
            and (due := part.due_ms(cells[part.name])) is not None
        ]
        return min(found, default=None)

    def _run(
        self, record: StreamRecord | Letter, cells: Cells, watermark_ms: int, place: int
    ) -> Taken:
        if isinstance(record, Letter) or place == len(self.parts):
            yield record
            return
        part = self.parts[place]
        given: Iterator[StreamRecord | Letter]
        if isinstance(part, KeyedOperator):
            given = part.take(record, cells.setdefault(part.name, {}), watermark_ms)
        else:
            given = part.take(record)
        yield from self._guarded(part.name, record, given, cells, watermark_ms, place)

    def _guarded(
        self,
        name: str,
        record: StreamRecord,
        given: Taken,
        cells: Cells,
        watermark_ms: int | None,
        place: int,
    ) -> Taken:
        """Pass the results of a part on to the next part. If the part raises, the record fails.

        With ``watermark_ms`` None the results are those of closed windows. Then the watermark for each result is the
        last moment of its window. So a longer window behind, which ends at the same time, is still open.
        """
        for following in results(given, self._failures, name, record):
            if watermark_ms is None and isinstance(following, StreamRecord):
                yield from self._run(following, cells, following.time_ms, place + 1)
            else:
                yield from self._run(following, cells, watermark_ms or 0, place + 1)


def packed(cells: Cells) -> bytes:
    """Return a key's cells as bytes, without empty cells."""
    return pickle.dumps(
        {name: cell for name, cell in cells.items() if cell}, pickle.HIGHEST_PROTOCOL
    )


def unpacked(state: bytes) -> Cells:
    """Return the cells in the bytes of ``packed``."""
    cells: Cells = pickle.loads(state)  # noqa: S301 - The job's own.
    return cells

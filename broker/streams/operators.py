"""Operators with state, as they work on the records of one key. Pure: Spark calls them through passes.py.

All operators behind one key_by are one **chain**: what one gives out goes through those behind it at once. Each has
a **cell** of the key's state, by its own name, so none sees another's::

    records of a key, by their place ──> operator ──> functions ──> operator ──> … ──> out
                                            │ cell                     │ cell
    time comes: a window ends ──────────────┘                          │

A window is open until the watermark reaches its end; it is given out then, once. Records are late when their
window is closed, whatever the watermark says of their own time. The cells are pickled as one value for each key.
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
from broker.streams.stateless_steps import Step, Taken
from broker.streams.stream_records import Letter, StreamRecord
from broker.streams.windows import SessionWindow, Sliding, Window, Windows

Cell = dict[Any, Any]
Cells = dict[str, Cell]


V = TypeVar("V")
R = TypeVar("R")


class KeyedOperator(ABC):
    """Work on the records of a key, with a cell of its state."""

    is_timed = False
    """Whether it waits for times."""

    def __init__(self, name: str) -> None:
        """Take the name under which its state is kept."""
        self.name = name

    @abstractmethod
    def take(self, record: StreamRecord, cell: Cell, watermark_ms: int) -> Taken:
        """Yield what a record gives."""

    def due_ms(self, cell: Cell) -> int | None:
        """Return the watermark at which ``expire`` shall be called; None: not."""
        return None

    def expire(self, key: Any, cell: Cell, watermark_ms: int) -> Taken:
        """Yield what is due."""
        yield from ()


class RunningAggregate(KeyedOperator):
    """An aggregate without a window: gives the result so far for each record."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Accumulator[Any, Any]],
        select: Callable[[Any], Any] | None = None,
    ) -> None:
        """Keep how an accumulator is made, and which part of a value it takes."""
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
    """An aggregate by window. The cell has the accumulator of each open one: ``{window: accumulator}``."""

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
        """Keep all; late records go to the topic ``late``."""
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
        if len(near) > 1:  # A merge may fail, and then the sessions stay as they are.
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
    """A key's state as a processor has it: any value that can be pickled, and one time to be called at."""

    def __init__(self, cell: Cell, watermark_ms: int) -> None:
        """Look into a cell."""
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
        """Let ``on_time`` be called once the watermark has reached a time; None: not. From there, give a later one."""
        self._keep("due", time_ms)

    def _keep(self, name: str, value: Any) -> None:
        """Keep a value; a key of which nothing is kept needs no state."""
        if value is None:
            self._cell.pop(name, None)
        else:
            self._cell[name] = value


class Processor(ABC, Generic[V, R]):
    """Work that a job does by itself, record by record. It keeps nothing but what is in ``state``."""

    @abstractmethod
    def process(self, key: Any, value: V, time_ms: int, state: State) -> Iterable[R]:
        """Return what a record gives."""

    def on_time(self, key: Any, time_ms: int, state: State) -> Iterable[R]:
        """Return what is to be given at a time that was asked for."""
        return ()


class ProcessorOperator(KeyedOperator):
    """A processor as an operator."""

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
        """Whether any part waits for times."""
        return any(isinstance(part, KeyedOperator) and part.is_timed for part in self.parts)

    def take(self, records: Sequence[StreamRecord], cells: Cells, watermark_ms: int) -> Taken:
        """Yield what the records of a key give; ``cells`` is its state. Raises Failed."""
        for record in sorted(records, key=operator.attrgetter("at")):
            yield from self._run(record, cells, watermark_ms, 0)

    def expire(self, key: Any, cells: Cells, watermark_ms: int) -> Taken:
        """Yield what is due for a key. Raises Failed."""
        for place, part in enumerate(self.parts):
            if not isinstance(part, KeyedOperator) or part.name not in cells:
                continue
            cell, before_ms = cells[part.name], None
            # Once more as long as it comes further: behind a window that failed, or to a time that was asked for.
            while (due_ms := part.due_ms(cell)) is not None and due_ms <= watermark_ms:
                if before_ms is not None and due_ms <= before_ms:
                    break
                before_ms = due_ms
                given = part.expire(key, cell, watermark_ms)
                record = StreamRecord(None, b"", due_ms, key)
                yield from self._guarded(part.name, record, given, cells, None, place)

    def due_ms(self, cells: Cells) -> int | None:
        """Return the watermark at which ``expire`` shall be called for a key; None: not."""
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
        """Go on with what a part gives; what it raises makes the record fail.

        ``watermark_ms`` None: for what a closed window gives, it is that window's last moment. So a longer window
        behind it is open, which ends at the same time.
        """
        while True:
            try:
                following = next(given, None)
            except Exception as error:  # noqa: BLE001 - The user's function may raise anything.
                yield self._failures.letter("error", name, record, error)
                return
            if following is None:
                return
            if watermark_ms is None and isinstance(following, StreamRecord):
                yield from self._run(following, cells, following.time_ms, place + 1)
            else:
                yield from self._run(following, cells, watermark_ms or 0, place + 1)


def packed(cells: Cells) -> bytes:
    """Return a key's cells as bytes; those that have nothing are left out."""
    return pickle.dumps(
        {name: cell for name, cell in cells.items() if cell}, pickle.HIGHEST_PROTOCOL
    )


def unpacked(state: bytes) -> Cells:
    """Return the cells that ``packed`` was given."""
    cells: Cells = pickle.loads(state)  # noqa: S301 - The job's own.
    return cells

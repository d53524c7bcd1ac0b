"""The chain of changes of one control row under one hold.

Every change starts from the value that was last *confirmed*, and the next is built only when it is
resolved: applied, or the end of the hold. So at most one compare-and-set is under way, and a late or
repeated one can only find a value that is no longer there::

    confirmed ──▶ build ──▶ compare-and-set ── True ─────────────────────────▶ confirmed
                                  │
                         False, error: read the row
                                  │
             my token: applied ───┼─── the one before: not yet, repeat it byte for byte
                                  │
             higher epoch: fenced ┴─── same epoch, foreign token: stopped    ──▶ the chain ends

False is no answer by itself: a gateway whose first try was applied and whose answer was lost tries again
and then says False.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from broker import guards
from broker.errors import BrokerError, Fenced, OutcomeUnknown, Unavailable
from broker.storage import control, controlvalue
from broker.storage.cells import CONTROL_COLUMN, Cell, Cells, CellsError, CellsRefused, Table
from broker.storage.control import TOKEN_BYTES, Control, Resolution
from broker.storage.retrying import Pauses, Retrying

Build = Callable[[Control | None, bytes], Control]
"""(current value, token) -> next value."""
Prepare = Callable[[Control | None, bytes], Awaitable[None]]
"""Writes what must be there before the value that names it."""


class Tokens:
    """Gives tokens that tell which hold wrote, and in which order."""

    def __init__(self, nonce: bytes) -> None:
        """Begin a hold's tokens; ``nonce`` is random."""
        self.nonce = nonce
        self._count = 0

    def fresh(self) -> bytes:
        """Return a token that was never used."""
        self._count += 1
        if not guards.holds("token"):
            return bytes(TOKEN_BYTES)
        return control.token_of(self.nonce, self._count)

    def are_mine(self, token: bytes) -> bool:
        """Whether this hold made the token."""
        return control.is_of_same_hold(token, control.token_of(self.nonce, 0))


class Lost(Exception):
    """The row shows that another holds the log. ``seen`` says what of mine was applied before."""

    def __init__(self, resolution: Resolution, seen: Control) -> None:
        """Keep the judgement and the row by which it was made."""
        super().__init__(f"{resolution.value}: the control row has epoch {seen.epoch}")
        self.resolution = resolution
        self.seen = seen


class NotSent(Unavailable):
    """No compare-and-set ever left this node: it was not done, and the chain goes on."""


class _Step(NamedTuple):
    """A compare-and-set that is ready to go: from ``current`` to ``written``, each with its bytes."""

    build: Build
    current: Control | None
    expected: bytes | None
    written: Control
    value: bytes


async def read_control(cells: Cells, table: Table, key: bytes) -> Control | None:
    """Read a control row. Raises CellsError, StorageCorrupt."""
    cell = await _read_cell(cells, table, key)
    return None if cell is None else controlvalue.decode(cell.value)


async def _read_cell(cells: Cells, table: Table, key: bytes) -> Cell | None:
    columns = await cells.get(table, key)
    return None if columns is None else columns.get(CONTROL_COLUMN)


class Chain:
    """Changes one control row, one compare-and-set at a time, in the order of the calls."""

    def __init__(
        self,
        cells: Cells,
        place: tuple[Table, bytes],
        tokens: Tokens,
        retrying: Retrying,
        noted: Callable[[Table, bytes, Control], None],
    ) -> None:
        """Begin with no value known; ``learn`` reads it. ``noted`` is told of each confirmed value."""
        self.confirmed: Control | None = None
        self.learned_tag: int | None = None
        """The tag of the row that ``learn`` read."""
        self.ended = False
        self.guard = "confirm-cas"
        self._cells = cells
        self._table, self._key = place
        self._noted = noted
        self._tokens = tokens
        self._retrying = retrying
        self._lock = asyncio.Lock()
        self._confirmed_value: bytes | None = None
        """The bytes of ``confirmed``, as they lie in the row."""
        self._ahead: _Step | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return self._lock.locked()

    def end(self) -> None:
        """Refuse every further change."""
        self.ended = True

    async def learn(self) -> Control | None:
        """Read the row and start from it. Raises Unavailable, StorageCorrupt."""
        cell = await self._retrying.read(lambda: _read_cell(self._cells, self._table, self._key))
        self.learned_tag = None if cell is None else cell.tag
        self.confirmed = None if cell is None else controlvalue.decode(cell.value)
        self._confirmed_value = None if cell is None else cell.value
        return self.confirmed

    async def tag(self) -> int | None:
        """Return the tag of the row as it is now, None if it is not there, or nobody answers."""
        try:
            cell = await _read_cell(self._cells, self._table, self._key)
        except CellsError:
            return None
        return None if cell is None else cell.tag

    async def confirmed_tag(self) -> int | None:
        """Return the tag of the confirmed value, None if it is no longer there, or nobody answers."""
        try:
            cell = await _read_cell(self._cells, self._table, self._key)
        except CellsError:
            return None
        if cell is None or self.confirmed is None:
            return None
        return cell.tag if controlvalue.decode(cell.value).token == self.confirmed.token else None

    def build_ahead(self, build: Build) -> None:
        """Build what ``change(build)`` will send if nothing is confirmed until then; else it builds anew.

        For a caller that waits for something else just now. Nothing is sent, and nothing is raised.
        """
        if self.ended or self.is_busy:
            return
        try:
            self._ahead = self._step(build, self.confirmed, self._tokens.fresh())
        except BrokerError:
            # Raised by the build in its turn, which may find another value.
            self._ahead = None

    async def change(self, build: Build, prepare: Prepare | None = None) -> Control:
        """Apply one change, after those that were asked for earlier.

        What ``build`` raises goes to the caller and leaves the chain as it was.

        Raises:
            Fenced: the chain has ended; nothing was sent.
            NotSent: nothing was sent, and the chain goes on.
            Lost: another holds the log; the chain has ended.
            OutcomeUnknown: it may be applied, or be applied yet; the chain has ended.
        """
        async with self._lock:
            if self.ended:
                raise Fenced("the hold is over")
            return await self._resolved(build, prepare)

    async def _resolved(self, build: Build, prepare: Prepare | None) -> Control:
        attempts: dict[bytes, _Step] = {}
        pauses = self._retrying.pauses(self._retrying.deadline())
        current = self.confirmed
        while True:
            step = self._built_ahead(build, current)
            if step is None:
                token = self._tokens.fresh()
                if prepare is not None:
                    await prepare(current, token)
                step = self._step(build, current, token)
            attempts[step.written.token] = step
            try:
                current = await self._settled(step, pauses)
            except NotSent:
                raise
            except BaseException:
                self.end()
                raise
            if current.token in attempts:
                applied = attempts[current.token]
                self.confirmed, self._confirmed_value = applied.written, applied.value
                self._noted(self._table, self._key, self.confirmed)
                return self.confirmed

    def _built_ahead(self, build: Build, current: Control | None) -> _Step | None:
        step = self._ahead
        if step is None or step.build is not build or step.current is not current:
            return None
        self._ahead = None
        return step

    def _step(self, build: Build, current: Control | None, token: bytes) -> _Step:
        written = build(current, token)
        written.check()
        if current is None:
            expected = None
        elif current is self.confirmed:
            expected = self._confirmed_value
        else:
            expected = controlvalue.encode(current)
        return _Step(build, current, expected, written, controlvalue.encode(written))

    async def _settled(self, step: _Step, pauses: Pauses) -> Control:
        """Write until it is known how that ended; return ``written``, or what was there before it.

        The latter can be only before this hold's first write: a lower epoch moved the row after it
        was read, and the change must be built upon that.
        """
        _, current, expected, written, value = step
        sent = False
        while True:
            try:
                if await self._attempt(expected, value):
                    return written
            except CellsRefused as refused:
                await _after_refusal(refused, pauses, sent=sent)
                continue
            sent = True
            if not guards.holds("resolve-false"):
                raise Fenced("the compare-and-set said False")
            seen = await self._seen(pauses)
            resolution = control.resolve(written, None if current is None else current.token, seen)
            if resolution is Resolution.APPLIED:
                return written
            if resolution in {Resolution.FENCED, Resolution.STOPPED}:
                assert seen is not None
                raise Lost(resolution, seen)
            if resolution is Resolution.BEHIND and _moved(current, written, seen):
                # At once: whoever moved it may be about to do so again.
                pauses.check("the control row does not stand still")
                assert seen is not None
                return seen
            await pauses.next("the control row's compare-and-set is unresolved")

    async def _attempt(self, expected: bytes | None, value: bytes) -> bool:
        """Try once; False stands for every answer that is none. Raises CellsRefused."""
        try:
            if not guards.holds(self.guard):
                columns = await self._cells.get(self._table, self._key)
                expected = columns[CONTROL_COLUMN].value if columns else None
            return await self._cells.check_and_put(self._table, self._key, expected, value)
        except CellsRefused:
            raise
        except CellsError:
            return False

    async def _seen(self, pauses: Pauses) -> Control | None:
        while True:
            try:
                return await read_control(self._cells, self._table, self._key)
            except CellsError:
                await pauses.next("the control row can't be read")


async def _after_refusal(refused: CellsRefused, pauses: Pauses, *, sent: bool) -> None:
    """Wait before the next attempt. Raises NotSent past the deadline, OutcomeUnknown if one was sent."""
    try:
        await pauses.next("no gateway takes the control row's compare-and-set")
    except OutcomeUnknown as unknown:
        if sent:
            raise
        raise NotSent(f"Storage can't be reached: {refused}.") from unknown


def _moved(current: Control | None, written: Control, seen: Control | None) -> bool:
    """Whether ``seen`` came after ``current``, neither of which is of the writer's epoch.

    Then what was written upon ``current`` never counts. An answer from before ``current`` says nothing of it.
    """
    if seen is None or seen.epoch >= written.epoch:
        return False
    return current is None or control.is_older(current, seen)

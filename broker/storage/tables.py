"""The log store over tables of cells: memory now, HBase's gateways in a cluster.

An append is three steps, and only the last one makes anything count::

    rows (in the order of batches, each repeated until it is confirmed)
      └─▶ compare-and-set of the control row to the new pointer (chain.py, one at a time)
            └─▶ acknowledge

Whoever is fenced fails at the second step, whatever it left by the first. What can't be confirmed ends
the hold: the rows may land at any time, and only a new epoch makes sure that they never count. The parts:

    tables.py       the port                    holds.py     a hold, and the order of rows
    claiming.py     taking and ending a hold    changing.py  appends, rollbacks, single changes
    chain.py        compare-and-set, resolved   putting.py   rows, until they are confirmed
    reading.py      pages that are whole        sweeping.py  removing what is over
    visibility.py   which cells count (pure)    control.py   the control row (pure)
                                                controlvalue.py  its bytes (pure)
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from broker import guards
from broker.clock import Clock
from broker.model import ROW_ID_MIN, RowId, TopicId
from broker.storage import control, controlvalue
from broker.storage.cells import Cells
from broker.storage.changing import LogChanger
from broker.storage.claiming import LogClaimer
from broker.storage.control import HOLD_NONCE_BYTES, Control, State
from broker.storage.holds import TableHold
from broker.storage.keys import (
    LogId,
    log_prefix,
    payload_controls_prefix,
    payload_log_of,
    prefix_end,
)
from broker.storage.old_reading import Limits, LogReader, table_of
from broker.storage.old_sweeping import LogSweeper
from broker.storage.ports import Batch, Estimate, Hold, Rows, SideRow, Swept
from broker.storage.putting import RowWriter
from broker.storage.retrying import Retrying

CALL_S = 25.0
"""Under a request's deadline, and several times what a gateway lets one call of it take."""
BESIDE_PAYLOAD_BYTES = 1 << 12
"""Room for a row's key and its other cells."""


def random_nonce() -> bytes:
    """Return the random part of a hold's tokens."""
    return secrets.token_bytes(HOLD_NONCE_BYTES)


class TableLogStore:
    """LogStore over Cells. One per process; any number of processes may share the tables."""

    pipeline_depth = 2
    """One batch's rows may be under way while the compare-and-set of the one before is."""

    def __init__(
        self,
        cells: Cells,
        clock: Clock,
        *,
        call_s: float = CALL_S,
        nonce: Callable[[], bytes] = random_nonce,
        chance: random.Random | None = None,
    ) -> None:
        """Keep logs in ``cells``; each call ends within about ``call_s`` seconds."""
        self._cells = cells
        self._retrying = Retrying(clock, call_s, chance or random.Random())  # noqa: S311  Spread only.
        self._reader = LogReader(cells, self._retrying)
        writer = RowWriter(cells, self._retrying)
        self._claimer = LogClaimer(cells, self._retrying, self._reader, writer, nonce)
        self._changer = LogChanger(self._retrying, self._reader, writer)
        self._sweeper = LogSweeper(cells, self._retrying, self._reader)

    @property
    def row_bytes_max(self) -> int:
        """The largest payload of one row."""
        return self._cells.row_bytes_max - BESIDE_PAYLOAD_BYTES

    @property
    def stale_answers(self) -> int:
        """How many answers of the tables were refused because they showed an earlier state."""
        return self._reader.stale_answers

    async def head(self, log: LogId) -> Control | None:
        """Return the log's control row."""
        return await self._reader.head(log)

    # Holding a log.

    async def claim(self, log: LogId, owner: str, *, keep_after: RowId = ROW_ID_MIN) -> TableHold:
        """Take a message log: epoch + 1, durable on return."""
        return await self._claimer.claim(log, owner, keep_after=keep_after)

    async def open_payloads(self, topic_hold: Hold, number: int) -> TableHold:
        """Return a hold on a payload log under the topic's epoch. Writes nothing yet."""
        return await self._claimer.open_payloads(_mine(topic_hold), number)

    async def release(self, hold: Hold) -> bool:
        """Hand a message log off if everything sent is confirmed; else just let go (False)."""
        return await self._claimer.release(_mine(hold))

    async def tombstone(self, log: LogId, owner: str) -> None:
        """Mark the topic's generation deleted; fences every holder. Idempotent."""
        await self._claimer.tombstone(log, owner)

    # Writing.

    def append(self, hold: Hold, batch: Batch) -> Coroutine[Any, Any, None]:
        """Write rows, side rows and the new pointer; on disk and counting on return."""
        return self._changer.append(_mine(hold), batch)

    async def negate(self, hold: Hold, first: RowId, last: RowId, pointer: int) -> int:
        """Negate the counting rows in ``[first, last]`` whose ``t`` is ``pointer``; return how many."""
        return await self._changer.negate(_mine(hold), first, last, pointer)

    async def raise_floor(self, hold: Hold, floor: RowId) -> None:
        """Raise the floor of a message log; lower values change nothing."""
        held = _mine(hold)
        held.check()
        if min(floor, held.control.pointer) <= held.control.floor:
            return
        if not guards.holds("floor-cas"):
            held.chain.confirmed = control.floor_raised(held.control, floor, held.control.token)
            return
        await self._changer.change(
            held, lambda current, token: control.floor_raised(held.adopted(current), floor, token)
        )

    async def seal(self, hold: Hold, at: RowId) -> None:
        """Seal an open payload log, also an empty one without a control row."""
        held = _mine(hold)
        held.check()
        if held.control.state is State.OPEN:
            await self._changer.change(
                held, lambda current, token: _sealed(held.adopted(current), at, token)
            )

    async def mark_published(self, hold: Hold, reference: RowId) -> None:
        """Record the row id of the committed reference on a sealed payload log."""
        held = _mine(hold)
        held.check()
        if held.control.state is State.SEALED:
            await self._changer.change(
                held,
                lambda current, token: _published(held.adopted(current), reference, token),
            )

    async def drop(self, hold: Hold) -> None:
        """Declare that a payload log's rows may go."""
        held = _mine(hold)
        held.check()
        if held.control.state is not State.DROPPED:
            await self._changer.change(
                held, lambda current, token: control.dropped(held.adopted(current), token)
            )

    async def server_ms(self, hold: Hold) -> int | None:
        """Return the servers' time of a write that changes nothing but the control row's token."""
        held = _mine(hold)
        held.check()
        if not self._cells.tags_are_times:
            return None
        before_ms = await held.chain.tag()
        await self._changer.change(
            held, lambda current, token: control.confirmed(held.adopted(current), token)
        )
        # Of this write or of a later one of this hold: a time since the call, in either case. One that
        # is not greater than that before is no time, since HBase never lets it fall.
        after_ms = await held.chain.tag()
        if before_ms is None or after_ms is None or after_ms <= before_ms:
            return None
        return after_ms

    # Reading.

    async def scan(
        self,
        log: LogId,
        after: RowId,
        through: RowId,
        *,
        rows_max: int,
        bytes_max: int,
        reverse: bool = False,
    ) -> Rows:
        """Return counting rows with ids in ``(after, through]``, in order, at least the floor."""
        limits = Limits(rows_max, bytes_max)
        return await self._reader.page(log, after, through, limits, reverse=reverse)

    async def side(self, log: LogId, kind: bytes, key: bytes) -> list[SideRow]:
        """Return the counting side rows of one kind and key, the oldest first."""
        return await self._reader.side(log, kind, key)

    async def payload_logs(
        self, topic: TopicId, generation: int | None = None
    ) -> list[tuple[LogId, Control]]:
        """Return the payload logs that a topic has control rows for (of one generation, or all)."""
        prefix = payload_controls_prefix(topic, generation)
        table = table_of(LogId(topic, 1, 0))
        return [
            (payload_log_of(topic, row.key), controlvalue.decode(cell.value))
            for row in await self._reader.prefixed(table, prefix)
            for cell in row.columns.values()
        ]

    # Sweeping.

    async def sweep_log(
        self,
        hold: Hold,
        expired_before_ms: int,
        rows_max: int,
        *,
        side_before: RowId = ROW_ID_MIN,
    ) -> Swept:
        """Remove one slice of a held message log."""
        return await self._sweeper.log(_mine(hold), expired_before_ms, rows_max, side_before)

    async def sweep_payloads(self, topic_hold: Hold, number: int, rows_max: int) -> Swept:
        """Remove one slice of a *dropped* payload log's rows; does nothing in any other state."""
        held = _mine(topic_hold)
        return await self._sweeper.payloads(held, _payload_log(held, number), rows_max)

    async def forget_payloads(self, topic_hold: Hold, number: int) -> None:
        """Remove the control row of a dropped payload log whose rows are gone."""
        held = _mine(topic_hold)
        await self._sweeper.forget(held, _payload_log(held, number))

    async def sweep_generations(self, topic: TopicId, below: int, rows_max: int) -> Swept:
        """Remove one slice of rows, side rows and payload controls of generations < ``below``."""
        return await self._sweeper.generations(topic, below, rows_max)

    async def estimate(self, log: LogId) -> Estimate:
        """Return roughly how many rows and bytes the log has on disk."""
        prefix = log_prefix(log)
        rows, size = await self._retrying.read(
            lambda: self._cells.weigh(table_of(log), prefix, prefix_end(prefix))
        )
        return Estimate(rows, size)

    async def compact(self, log: LogId) -> None:
        """Give space that sweeping freed back to the disk."""
        prefix = log_prefix(log)
        await self._retrying.read(
            lambda: self._cells.compact(table_of(log), prefix, prefix_end(prefix))
        )

    async def close(self) -> None:
        """Close the tables."""
        await self._cells.close()


def _mine(hold: Hold) -> TableHold:
    assert isinstance(hold, TableHold), "a hold belongs to the store that gave it"
    return hold


def _sealed(current: Control, at: RowId, token: bytes) -> Control:
    if current.state is not State.OPEN:
        return control.confirmed(current, token)
    return control.sealed(current, at, token)


def _published(current: Control, reference: RowId, token: bytes) -> Control:
    if current.state is not State.SEALED:
        return control.confirmed(current, token)
    return control.published(current, reference, token)


def _payload_log(topic_hold: TableHold, number: int) -> LogId:
    return LogId(topic_hold.log.topic, topic_hold.log.generation, number)

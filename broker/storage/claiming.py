"""Taking and ending the hold on a log in tables."""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import BrokerError, Fenced, Unavailable
from broker.model import RowId
from broker.storage import control, controlvalue
from broker.storage.cells import Cell, Cells, CellsError, RowCells
from broker.storage.chain import Chain, Lost, Tokens
from broker.storage.control import Control, EpochRange, State
from broker.storage.holds import TableHold
from broker.storage.keys import OLDER_RANGES, LogId, control_key, side_prefix
from broker.storage.old_reading import LogReader, table_of
from broker.storage.putting import RowWriter
from broker.storage.retrying import Retrying
from broker.storage.visibility import VALUE, row_tag


class LogClaimer:
    """Claims message logs, opens payload logs under them, and deletes them."""

    def __init__(
        self,
        cells: Cells,
        retrying: Retrying,
        reader: LogReader,
        writer: RowWriter,
        nonce: Callable[[], bytes],
    ) -> None:
        """Claim in ``cells``; ``nonce`` gives the random part of a hold's tokens."""
        self._cells = cells
        self._retrying = retrying
        self._reader = reader
        self._writer = writer
        self._nonce = nonce

    async def claim(self, log: LogId, owner: str, *, keep_after: RowId) -> TableHold:
        """Take a message log: epoch + 1, durable on return."""
        assert log.number is None, "a payload log is opened under its topic's hold"
        tokens = Tokens(self._nonce())
        chain = self._chain(log, tokens, guard="claim-cas")
        await chain.learn()

        def pruned(current: Control | None) -> Control | None:
            return None if current is None else control.pruned(current, keep_after)

        async def spill(current: Control | None, token: bytes) -> None:
            kept = pruned(current)
            moved = control.overflowing(kept) if kept is not None else ()
            if moved and kept is not None and kept.generation == log.generation:
                await self._write_older_ranges(log, kept.epoch + 1, token, moved)

        def build(current: Control | None, token: bytes) -> Control:
            kept = pruned(current)
            if kept is not None and kept.generation == log.generation:
                kept = control.spilled(kept, token)
            return control.claimed(kept, owner=owner, generation=log.generation, token=token)

        try:
            await chain.change(build, spill)
        except Lost as lost:
            raise Fenced(f"Another claim of {log.topic} came first: {lost}.") from lost
        chain.guard = "confirm-cas"
        hold = TableHold(log, chain, tokens)
        if self._cells.tags_are_times:
            hold.before_server_ms = chain.learned_tag
            hold.claimed_server_ms = await chain.confirmed_tag()
        return hold

    def _chain(self, log: LogId, tokens: Tokens, *, guard: str) -> Chain:
        place = (table_of(log), control_key(log))
        chain = Chain(self._cells, place, tokens, self._retrying, self._reader.newest.note)
        chain.guard = guard
        return chain

    async def _write_older_ranges(
        self, log: LogId, epoch: int, token: bytes, moved: tuple[EpochRange, ...]
    ) -> None:
        cell = Cell(row_tag(epoch), controlvalue.encode_ranges(moved))
        row = RowCells(side_prefix(log, OLDER_RANGES) + token, {VALUE: cell})
        try:
            await self._writer.put(table_of(log), [row])
        except CellsError as error:
            # Without its claim the row says nothing.
            raise Unavailable(f"Older ranges of {log.topic} can't be written: {error}") from error

    async def open_payloads(self, topic: TableHold, number: int) -> TableHold:
        """Return a hold on a payload log under the topic's epoch. Writes nothing yet."""
        topic.check()
        known = topic.payloads(number)
        if known is not None and not known.done:
            return known
        log = LogId(topic.log.topic, topic.log.generation, number)
        tokens = topic.tokens
        chain = self._chain(log, tokens, guard="confirm-cas")
        seen = await chain.learn()
        if seen is not None and (
            seen.epoch > topic.epoch
            or (seen.epoch == topic.epoch and not tokens.are_mine(seen.token))
        ):
            topic.end()
            raise Fenced(f"The payload log {number} of {log.topic} has epoch {seen.epoch}.")
        topic.check()
        return topic.remember(TableHold(log, chain, tokens, topic))

    async def release(self, held: TableHold) -> bool:
        """Hand a message log off if everything sent is confirmed; else just let go (False)."""
        if held.done:
            return False
        async with held.rows_lock:
            # Rows that are sent are confirmed now, and their commits come first in the chain.
            held.released = True
        try:
            await held.chain.change(
                lambda current, token: control.released(held.adopted(current), token)
            )
        except (Lost, BrokerError):
            return False
        finally:
            held.end()
        return True

    async def tombstone(self, log: LogId, owner: str) -> None:
        """Mark the topic's generation deleted; fences every holder. Idempotent."""
        while not await self._is_deleted(log, owner):
            # A claim came between, so the topic is not deleted yet: once more, above it.
            continue

    async def _is_deleted(self, log: LogId, owner: str) -> bool:
        """Put the tombstone if it is not there; False if somebody claimed the log meanwhile."""
        chain = self._chain(log, Tokens(self._nonce()), guard="claim-cas")
        seen = await chain.learn()
        if seen is not None and seen.generation == log.generation and seen.state is State.DELETED:
            return True

        def build(current: Control | None, token: bytes) -> Control:
            return control.tombstoned(current, owner=owner, generation=log.generation, token=token)

        try:
            await chain.change(build)
        except Lost:
            return False
        return True

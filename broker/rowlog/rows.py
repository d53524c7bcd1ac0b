"""The open messages of rows: read them, and change a state by compare-and-set.

Each change is decided from the bytes that were read, and is made only if they are still there. If the answer is "no",
or no answer comes, the cell is read again. If it has the new value, the change was made. If it has the old value, the
change is tried again. If it has another value, the change is decided again. Two equal states are the same state, since
each claim has a token of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker.errors import OutcomeUnknown, StorageCorrupt
from broker.rowlog.cell_keys import DATA, PAYLOAD, STATE, Columns, MessageId
from broker.rowlog.cells import decode_state, encode_state
from broker.rowlog.execution_state import Gone, State
from broker.rowlog.row_table import Cells, NotWritten, RowTable, TableError

ATTEMPTS: Final = 20
WIDE: Final = 32
"""If a row has more open messages, their payloads are not read."""
REMEMBERED: Final = 10_000
Decide = Callable[[State], State]


class Message(NamedTuple):
    """A message of a row, as a listener gets it. Row, seq and timestamp identify it."""

    rowlog: str
    row: bytes
    seq: int
    timestamp: int
    """ms since 1970, by the clock of the process that put it."""
    data: bytes
    """Small bytes that lie in the index, too."""
    payload: bytes

    @property
    def id(self) -> MessageId:
        """The id of the message within its row."""
        return MessageId(self.seq, self.timestamp)


class Found(NamedTuple):
    """A message as it was read. ``payload`` None: it was not read."""

    id: MessageId
    raw: bytes
    state: State
    data: bytes = b""
    payload: bytes | None = None


class Rows:
    """The messages of one rowlog in the user's table."""

    def __init__(self, rows: RowTable, table: bytes, columns: Columns) -> None:
        """Use the cells that ``columns`` names."""
        self._rows = rows
        self.table = table
        self.columns = columns
        self._last: OrderedDict[tuple[bytes, MessageId], bytes] = OrderedDict()
        """The states that this process wrote last: newer than those that its other subscriptions have read."""
        self._wide: set[bytes] = set()

    async def open(self, row: bytes) -> list[Found]:
        """Return the messages of a row that are not finished, in their order. Raises TableError."""
        family = self.columns.family + b":"
        if row in self._wide:
            scanned = await self._rows.scan(
                self.table,
                row,
                row + b"\0",
                [family],
                limit=1,
                qualifier_prefix=self.columns.state_prefix,
            )
            cells = dict(scanned).get(row, {})
        else:
            cells = (await self._rows.get(self.table, [row], [family])).get(row, {})
        found = self.read(cells)
        if len(found) > WIDE and len(self._wide) < REMEMBERED:
            self._wide.add(row)
        elif not found:
            self._wide.discard(row)
        return found

    def read(self, cells: Cells) -> list[Found]:
        """Return the messages in cells of a row, in their order."""
        found = []
        for column, raw in cells.items():
            message = self.columns.message(column)
            if message is not None:
                found.append(
                    Found(
                        message,
                        raw,
                        decode_state(raw),
                        cells.get(self.columns.of(DATA, message), b""),
                        cells.get(self.columns.of(PAYLOAD, message)),
                    )
                )
        return sorted(found, key=lambda each: each.id)

    async def one(self, row: bytes, message: MessageId) -> Found | None:
        """Return one message; None: it is finished, or was never there. Raises TableError."""
        wanted = [self.columns.of(kind, message) for kind in (STATE, DATA, PAYLOAD)]
        cells = (await self._rows.get(self.table, [row], wanted)).get(row, {})
        return next(iter(self.read(cells)), None)

    async def change(
        self,
        row: bytes,
        message: MessageId,
        decide: Decide,
        known: bytes | None = None,
        *,
        maybe: set[bytes] | None = None,
    ) -> State:
        """Change a message's state.

        Args:
            row: the key of the message's row.
            message: the message.
            decide: returns the state that is wanted.
            known: the bytes of the state as they were read.
            maybe: gets each value whose writing has an unknown outcome. After ``Gone`` it tells the caller that the
                change may have been made.

        Raises:
            Gone: there is no such message; and all that ``decide`` raises.
            TableError: nothing was changed.
            OutcomeUnknown: the state may have been changed.
        """
        place = (row, message)
        raw = self._last.get(place, known)
        maybe = set() if maybe is None else maybe
        for _ in range(ATTEMPTS):
            if raw is None:
                raw = await self._raw(row, message, maybe)
            state = decode_state(raw)
            try:
                wanted = decide(state)
            except Exception:
                if place not in self._last and raw == known:
                    raise
                self._last.pop(place, None)
                fresh = await self._raw(row, message, maybe)
                if fresh == raw:
                    raise
                raw = fresh
                continue
            if wanted == state:
                return state
            value = encode_state(wanted)
            if await self._swap(row, message, raw, value, maybe):
                self._remember(place, value)
                return wanted
            self._last.pop(place, None)
            now = await self._raw(row, message, maybe)
            if now == value:
                self._remember(place, value)
                return wanted
            raw = now
        raise OutcomeUnknown(
            "A message's state changes too often; whether this change was made is open."
        )

    async def _swap(
        self, row: bytes, message: MessageId, raw: bytes, value: bytes, maybe: set[bytes]
    ) -> bool:
        column = self.columns.of(STATE, message)
        try:
            is_made = await self._rows.check_and_put(self.table, row, column, raw, value)
        except NotWritten:
            return False
        except TableError:
            is_made = False
        if not is_made:
            # Also after a False: the gateway may have lost the answer of the call that made it.
            maybe.add(value)
        return is_made

    async def _raw(self, row: bytes, message: MessageId, maybe: set[bytes]) -> bytes:
        """Read a state. Raises Gone, TableError, OutcomeUnknown."""
        column = self.columns.of(STATE, message)
        try:
            found = await self._rows.get(self.table, [row], [column])
        except TableError as error:
            if maybe:
                raise OutcomeUnknown(f"A state may have been changed: {error}.") from error
            raise
        raw = found.get(row, {}).get(column, b"")
        if not raw:
            raise Gone
        return raw

    def _remember(self, place: tuple[bytes, MessageId], raw: bytes) -> None:
        self._last[place] = raw
        self._last.move_to_end(place)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    async def remove(self, row: bytes, messages: Sequence[MessageId]) -> None:
        """Delete the cells of finished messages. If a deletion gets lost, a later reading of the row repeats it."""
        kinds = (PAYLOAD, DATA, STATE)
        columns = [self.columns.of(kind, each) for each in messages for kind in kinds]
        for each in messages:
            self._last.pop((row, each), None)
        await self._rows.delete(self.table, [(row, columns)])

    async def region_starts(self) -> list[bytes]:
        """Return the first key of each region of the user's table; of one alone if they can't be had."""
        try:
            return await self._rows.region_starts(self.table)
        except TableError:
            return [b""]

    async def sweep(
        self, start: bytes, limit: int, stop: bytes = b""
    ) -> list[tuple[bytes, list[Found] | None]]:
        """Return rows of ``[start, stop)`` that have messages, without their payloads. Raises TableError.

        If a state of a row can't be decoded, None is in place of its messages.
        """
        scanned = await self._rows.scan(
            self.table,
            start,
            stop,
            [self.columns.family + b":"],
            limit=limit,
            qualifier_prefix=self.columns.state_prefix,
        )
        return [(row, self._readable(cells)) for row, cells in scanned]

    def _readable(self, cells: Cells) -> list[Found] | None:
        try:
            return self.read(cells)
        except StorageCorrupt:
            return None

    async def data(self, row: bytes, messages: Sequence[MessageId]) -> dict[MessageId, bytes]:
        """Return the data of those messages that have any. Raises TableError."""
        columns = {self.columns.of(DATA, each): each for each in messages}
        found = (await self._rows.get(self.table, [row], list(columns))).get(row, {})
        return {columns[column]: value for column, value in found.items()}

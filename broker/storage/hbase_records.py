"""Records in one HBase table: topics, pins, claims, each changed by a compare-and-set.

A record's stored value says how many times it was changed and by which
attempt, and both together are its version::

    changes [8] | nonce [8] | value | CRC-32

A compare-and-set that is answered with False or an error is resolved by reading. If the record has not
changed, it is repeated, byte for byte. If the change that followed the expected one is another's, mine was
never applied and never will be. If more changes came since, mine may have been among them: nobody can say.
"""

from __future__ import annotations

import random
import secrets
from typing import NamedTuple

from broker.clock import Clock
from broker.errors import OutcomeUnknown, StorageCorrupt
from broker.storage.cells import CONTROL_COLUMN, CellsError, Columns
from broker.storage.hbase_gateways import Gateways
from broker.storage.hbase_schema import RECORDS, Schema
from broker.storage.hbase_table import HBaseTable
from broker.storage.keys import prefix_end
from broker.storage.ports import Record
from broker.storage.retrying import Pauses, Retrying
from broker.storage.rowvalue import decode_checked, encode_checked

CALL_S = 25.0
NONCE_BYTES = 8
SCAN_ROWS_MAX = 1000
SCAN_BYTES_MAX = 8 << 20


class _Stored(NamedTuple):
    """A record as it lies in the table. Absent: no changes, no bytes."""

    changes: int
    nonce: bytes
    record: Record | None
    raw: bytes | None


_ABSENT = _Stored(0, b"", None, None)


class HBaseRecordStore:
    """RecordStore over a table of HBase. Whoever made the gateways closes them."""

    def __init__(
        self, gateways: Gateways, schema: Schema, clock: Clock, *, call_s: float = CALL_S
    ) -> None:
        """Use the table that ``schema`` names; each call ends within about ``call_s``."""
        self._table = HBaseTable(gateways, schema.name_of(RECORDS), schema.durability)
        chance = random.Random()  # noqa: S311  It spreads pauses, no more.
        self._retrying = Retrying(clock, call_s, chance)

    async def get(self, key: bytes) -> Record | None:
        """Return the record, or None. Raises Unavailable, StorageCorrupt."""
        return (await self._retrying.read(lambda: self._read(key))).record

    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        """Put ``value`` if the record's version is ``expected`` (None: absent), durably.

        Returns the new version, or None if the record is different from what was expected.

        Raises:
            OutcomeUnknown: it may have been put.
            Unavailable: the record could not be read; nothing was written.
        """
        before = await self._retrying.read(lambda: self._read(key))
        if (None if before.record is None else before.record.version) != expected:
            return None
        raw = _encode(before.changes + 1, secrets.token_bytes(NONCE_BYTES), value)
        mine = _decode(raw)
        pauses = self._retrying.pauses(self._retrying.deadline())
        while not await self._attempt(key, before.raw, raw):
            seen = await self._seen(key, pauses)
            if seen.nonce == mine.nonce:
                break
            if seen.changes == mine.changes:
                return None
            if seen.changes > mine.changes:
                raise OutcomeUnknown("The record was changed again: mine may have been applied.")
            await pauses.next("a record's compare-and-set is unresolved")
        assert mine.record is not None
        return mine.record.version

    async def _attempt(self, key: bytes, expected: bytes | None, raw: bytes) -> bool:
        """Try once; False stands for every answer that is none."""
        try:
            return await self._table.check_and_put(key, expected, raw)
        except CellsError:
            return False

    async def _seen(self, key: bytes, pauses: Pauses) -> _Stored:
        while True:
            try:
                return await self._read(key)
            except CellsError:
                await pauses.next("a record can't be read")

    async def _read(self, key: bytes) -> _Stored:
        return _stored(await self._table.get(key))

    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        """Return all records whose key begins with ``prefix``, in key order."""
        found: list[tuple[bytes, Record]] = []
        start, more = prefix, True
        while more:
            rows, more = await self._retrying.read(
                lambda start=start: self._table.scan(  # type: ignore[misc]
                    start, prefix_end(prefix), rows_max=SCAN_ROWS_MAX, bytes_max=SCAN_BYTES_MAX
                )
            )
            for key, columns in rows:
                record = _stored(columns).record
                if record is not None:
                    found.append((key, record))
            start = rows[-1].key + b"\0" if rows else start
        return found


def _stored(columns: Columns | None) -> _Stored:
    cell = None if columns is None else columns.get(CONTROL_COLUMN)
    return _ABSENT if cell is None else _decode(cell.value)


def _encode(changes: int, nonce: bytes, value: bytes) -> bytes:
    return encode_checked(changes, nonce + value)


def _decode(raw: bytes) -> _Stored:
    changes, data = decode_checked(raw)
    nonce, value = data[:NONCE_BYTES], data[NONCE_BYTES:]
    if changes < 1 or len(nonce) < NONCE_BYTES:
        raise StorageCorrupt("a record has no version")
    version = changes.to_bytes(8, "big") + nonce
    return _Stored(changes, nonce, Record(value, version), raw)

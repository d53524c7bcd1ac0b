"""What each call of the log port adds to a round of the LevelDB writer.

Every function here returns the function that the writer thread applies: it reads the control row as the
round leaves it, raises if it must refuse, and only then puts. The rules themselves are control.py's.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from broker.errors import PayloadsSealed, TransactionTooOld
from broker.model import RowId, timestamp_of
from broker.storage import control as controls
from broker.storage.control import Control, State
from broker.storage.controlvalue import encode_ranges
from broker.storage.keys import OLDER_RANGES, LogId, side_prefix
from broker.storage.leveldb_holds import MESSAGES, HeldLog, database_control_key, table_of
from broker.storage.leveldb_round import Round
from broker.storage.leveldb_writer import Apply
from broker.storage.ports import Batch, Segment, SideRow
from broker.storage.rowvalue import encode_checked, segment_head

EXPIRY = b"x"
"""Side rows of LevelDB alone: which rows have a lifetime of their own, by when it ends::

    side prefix | int64 end of life, ms | row id   ->   nothing

The sweeper finds them there instead of reading every row of every log.
"""
_INT64 = struct.Struct(">q")


def expiry_prefix(log: LogId) -> bytes:
    """Return the prefix of a log's expiry entries in the database."""
    return MESSAGES + side_prefix(log, EXPIRY)


def side_row_prefix(log: LogId, kind: bytes, key: bytes = b"") -> bytes:
    """Return the prefix of a log's side rows of one kind, or of one kind and key."""
    return table_of(log) + side_prefix(log, kind) + key


def claim(log: LogId, owner: str, keep_after: RowId) -> Apply:
    """Take a message log; the result is the hold."""
    key = database_control_key(log)

    def apply(round_: Round) -> HeldLog:
        before = round_.stored(key)
        base = None if before is None else controls.pruned(before, keep_after)
        older = () if base is None else controls.overflowing(base)
        if base is not None and older:
            tokens = (*base.older, round_.token)
            base = base._replace(ranges=base.ranges[len(older) :], older=tokens)
        after = controls.claimed(base, owner=owner, generation=log.generation, token=round_.token)
        after.check()
        if after.older and older:
            value = encode_checked(after.epoch, encode_ranges(older))
            round_.put(side_row_prefix(log, OLDER_RANGES, round_.token), value)
        hold = HeldLog(log, after, before, None)
        round_.holds.take(hold)
        round_.change(hold, after)
        return hold

    return apply


def append(hold: HeldLog, batch: Batch) -> Apply:
    """Put rows and side rows, and move the pointer."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        if hold.topic_hold is not None:
            _require_open(hold, current)
        round_.change(hold, controls.committed(current, batch.last, round_.token))
        for segment in batch.segments:
            _put_segment(round_, hold, segment)
            hold.rows += len(segment.ids)
        for side in batch.side:
            put_side(round_, hold, side)

    return apply


def _require_open(hold: HeldLog, current: Control) -> None:
    if current.state in {State.SEALED, State.PUBLISHED}:
        raise PayloadsSealed(
            f"the payloads stored under {hold.log.number} were published: nothing can be added"
        )
    _require_not_dropped(hold, current)


def _require_not_dropped(hold: HeldLog, current: Control) -> None:
    if current.state is State.DROPPED:
        raise TransactionTooOld(f"the payloads stored under {hold.log.number} have expired")


def _put_segment(round_: Round, hold: HeldLog, segment: Segment) -> None:
    head = segment_head(segment, hold.epoch)
    put, prefix = round_.put, hold.prefix
    if segment.payloads is None:
        for row in segment.ids:
            put(prefix + row, head)
    else:
        # The hottest loop of writing, without a step of Python's: twice as fast.
        keys, values = map(prefix.__add__, segment.ids), map(head.__add__, segment.payloads)
        deque(map(put, keys, values), maxlen=0)
        if len(segment.ids) != len(segment.payloads):
            raise ValueError("a segment has not as many ids as payloads")
    if segment.lifetime_ms is not None and hold.topic_hold is None:
        entries = expiry_prefix(hold.log)
        for row in segment.ids:
            put(entries + _INT64.pack(timestamp_of(row) + segment.lifetime_ms) + row, b"")


def put_side(round_: Round, hold: HeldLog, side: SideRow) -> None:
    """Put a side row under the hold's epoch."""
    key = side_row_prefix(hold.log, side.kind, side.key) + side.row
    round_.put(key, encode_checked(hold.epoch, side.value))


def negate(hold: HeldLog, rows: Iterable[tuple[bytes, bytes]]) -> Apply:
    """Put rows (database key and value) anew that readers may have seen otherwise."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        for key, value in rows:
            round_.put(key, value)
        round_.change(hold, controls.edited(current, round_.token))

    return apply


def seal(hold: HeldLog, at: RowId) -> Apply:
    """Seal an open payload log; one that is sealed or published stays as it is."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        _require_not_dropped(hold, current)
        if current.state is State.OPEN:
            round_.change(hold, controls.sealed(current, at, round_.token))

    return apply


def mark_published(hold: HeldLog, reference: RowId) -> Apply:
    """Record the reference that shows a sealed payload log."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        assert current.state is not State.OPEN, "published before it was sealed"
        if current.state is State.SEALED:
            round_.change(hold, controls.published(current, reference, round_.token))

    return apply


def raise_floor(hold: HeldLog, floor: RowId) -> Apply:
    """Raise the floor of a log, not above its pointer: the row there stays."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        reachable = min(floor, current.pointer)
        if reachable > current.floor:
            round_.change(hold, controls.floor_raised(current, reachable, round_.token))

    return apply


def drop(hold: HeldLog) -> Apply:
    """Declare that a payload log's rows may go."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        if current.state is not State.DROPPED:
            round_.change(hold, controls.dropped(current, round_.token))

    return apply


def release(hold: HeldLog) -> Apply:
    """Hand a log off. What was appended before is in this round or confirmed."""

    def apply(round_: Round) -> None:
        current = round_.of(hold)
        round_.change_unheld(hold.key, controls.released(current, round_.token))
        round_.holds.let_go(hold.key)

    return apply


def tombstone(log: LogId, owner: str) -> Apply:
    """Mark a topic's generation deleted."""
    key = database_control_key(log)

    def apply(round_: Round) -> None:
        current = round_.stored(key)
        if (
            current is not None
            and current.generation == log.generation
            and current.state is State.DELETED
        ):
            return
        after = controls.tombstoned(
            current, owner=owner, generation=log.generation, token=round_.token
        )
        round_.change_unheld(key, after)
        round_.holds.let_go(key)

    return apply


def delete(keys: Iterable[bytes], hold: HeldLog | None = None) -> Apply:
    """Remove keys; under a hold if one is given."""

    def apply(round_: Round) -> None:
        if hold is not None:
            round_.of(hold)
        for key in keys:
            round_.delete(key)

    return apply


def forget(topic_hold: HeldLog, log: LogId) -> Apply:
    """Remove the control row of a dropped payload log."""
    key = database_control_key(log)

    def apply(round_: Round) -> None:
        round_.of(topic_hold)
        current = round_.stored(key)
        if current is not None and current.state is State.DROPPED:
            round_.holds.let_go(key)
            round_.delete(key)

    return apply


def put_record(key: bytes, expected: bytes | None, value: bytes) -> Apply:
    """Put a record if its version is the expected one; the result is the new version or None."""

    def apply(round_: Round) -> bytes | None:
        found = round_.record_version(key)
        if found != expected:
            return None
        version = 1 if found is None else int.from_bytes(found, "big") + 1
        return round_.put_record(key, version, value)

    return apply

"""What is stored for requests that are stored together, and what each of them is told: no waiting, no I/O."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from broker.model import RowId
from broker.storage.ports import Batch, Segment, SideRow
from broker.topics.dedupe import Answer, encode_answer
from broker.topics.settings import Published

if TYPE_CHECKING:
    from broker.topics.writer import KeyMark, Write


def batch_of(writes: list[Write], ids: list[RowId]) -> Batch:
    """Give each request its ids, joining neighbours that share everything but payloads."""
    if len(writes) == 1 and writes[0].key is None:
        return Batch((_segment(writes[0], ids),), ids[-1])
    segments: list[Segment] = []
    side: list[SideRow] = []
    plain: list[Write] = []
    start = plain_start = 0
    for write in writes:
        end = start + write.rows
        if write.is_plain:
            plain.append(write)
        else:
            if plain:
                segments.append(_joined(plain, ids[plain_start:start]))
                plain = []
            segments.append(_segment(write, ids[start:end]))
            if write.key is not None:
                side.append(_side(write.key, ids[start], ids[end - 1]))
            plain_start = end
        start = end
    if plain:
        segments.append(_joined(plain, ids[plain_start:start]))
    return Batch(tuple(segments), ids[-1], tuple(side))


def _segment(write: Write, ids: list[RowId]) -> Segment:
    return Segment(ids, write.payloads, write.pointer, write.number, write.lifetime_ms)


def _joined(writes: list[Write], ids: list[RowId]) -> Segment:
    payloads = list(chain.from_iterable(write.payloads or () for write in writes))
    return Segment(ids, payloads)


def _side(key: KeyMark, first: RowId, last: RowId) -> SideRow:
    hashed, body_hash = key
    return SideRow(b"k", hashed, first, encode_answer(Answer(first, last, body_hash)))


def answer(writes: list[Write], batch: Batch) -> None:
    """Tell each request its rows. They are consecutive, in the order of the requests."""
    ids = (
        batch.segments[0].ids
        if len(batch.segments) == 1
        else list(chain.from_iterable(segment.ids for segment in batch.segments))
    )
    start = 0
    for write in writes:
        end = start + write.rows
        if not write.future.done():
            write.future.set_result(Published(ids[start], ids[end - 1], write.pointer))
        start = end

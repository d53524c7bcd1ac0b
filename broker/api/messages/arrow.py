"""Bulk reads: all messages of a range, as an Arrow IPC stream.

::

    id        binary                 20 bytes
    value     binary                 the payload
    key       binary                 null: none
    headers   map<string, binary>    null: none

Readers must find columns by name, since later versions may add columns. This module makes no Python object per
message. It joins the items of a page, as a poll does, and computes all columns at once from the places where
items begin::

    items     28 | key | zero | length | payload | 28 | key | …       of the message log
    pieces    └──────── header ────────┴─payload─┴─── header …        as Arrow's offsets: each item, each payload
    id        20 bytes of the header
    value     every second piece

Avro encodes a number in one way only. So the size of an item determines how many bytes the length of its payload
takes. Items of payload logs have no lead byte, and only half of the id. The other half is the key of their
reference.

Keys and headers are built one by one for the messages that have any. In most pages no message has any. Then both
columns are null, and their buffers are slices of one shared buffer of zeros.

Large buffers come from pyarrow, whose allocator reuses the memory of earlier buffers. Python and numpy get
buffers from the system and return them, with a page fault for each 4 KiB. That costs ten times as much as all
of the above.

pyarrow and numpy are an extra, and slow to import. The first bulk read imports them.

A stream ends with a marker. If reading fails after the status line was sent, the node sends no marker and cuts the
connection, as it does for polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from broker.api.asked import id_in, in_generation, read_snapshot
from broker.api.messages.polls import blocked_by
from broker.api.router import TopicHandlers
from broker.errors import BadRequest, NotInstalled
from broker.http.reply import Answer, ChunkedReply, Piece
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MESSAGE_ID_BYTES, Snapshot
from broker.operations.media_types import ARROW
from broker.topics.pages import PollPage, Run, cut
from broker.topics.streams import BulkStream
from broker.wire import attributes

THREAD_BYTES_MIN: Final = 4 * 1024 * 1024
THREAD_ATTRIBUTES_BYTES_MIN: Final = 16 * 1024
"""A page with at least so many bytes of payloads, or of keys and headers, is converted in a thread. On the loop it
would delay other requests."""


class BulkReading(TopicHandlers):
    """The handlers of bulk reads."""

    _maker: ArrowMaker | None = None

    async def arrow(self, request: Request) -> Answer:
        """Answer all messages of a range."""
        return await self._read(request, None)

    async def arrow_as(self, request: Request) -> Answer:
        """Answer the messages of a range, up to the first one that blocks the reading transaction."""
        return await self._read(request, await read_snapshot(request))

    async def _read(self, request: Request, snapshot: Snapshot | None) -> Answer:
        first, last = id_in(request, "after"), id_in(request, "through")
        if last is None:
            raise BadRequest("through: give the last id of the range; `range` returns it.")
        if self._maker is None:
            self._maker = await asyncio.to_thread(ArrowMaker)  # The import takes long.
        found = await self._topics.bulk(
            request.topic, first, last, snapshot, request.usage, generation=request.generation
        )
        headers = (*in_generation(found.generation), *blocked_by(found.blocked_by))
        pieces = _pieces(self._maker.stream(), found, request.usage.caller)
        return ChunkedReply(pieces, ARROW, headers, compressible=False)


async def _pieces(
    stream: ArrowStream, found: BulkStream, caller: str
) -> AsyncGenerator[Piece, None]:
    while (page := await found.next()) is not None:
        if _takes_long(page):
            pieces = await heavy(caller, partial(stream.batch, page))
        else:
            pieces = stream.batch(page)
        del page  # Free the memory of each piece as soon as a slow reader has taken it.
        while pieces:
            for piece in cut(pieces.pop(0)):
                yield piece
    yield stream.end()


def _takes_long(page: PollPage) -> bool:
    if page.bytes >= THREAD_BYTES_MIN:
        return True
    attributes_bytes = sum([len(entry.attributed) for entry, _, _, _ in page.runs])
    return attributes_bytes >= THREAD_ATTRIBUTES_BYTES_MIN


# --- From pages to record batches -----------------------------------------------------------------

_LEAD_BYTES: Final = 1
_INLINE_BYTES: Final = _LEAD_BYTES + MESSAGE_ID_BYTES
"""The bytes before the length in an item of the message log. An item of a payload log has a log key before it."""
_PAYLOADS_MAX: Final = ((1 << 6) - 1, (1 << 13) - 1, (1 << 20) - 1, (1 << 27) - 1)
"""The longest payloads whose length takes 1, 2, 3 and 4 bytes."""
_APART_BYTES: Final = 16 * 1024
"""A buffer of at least this size is sent without a copy. Smaller buffers are joined."""
_MISSING: Final = (
    "This node can't answer in Arrow's format: pyarrow or numpy is missing. "
    "Install the extra at the node, pip install 'tms-broker[arrow]', or poll."
)


class ArrowMaker:
    """Converts pages into record batches."""

    def __init__(self) -> None:
        """Import pyarrow and numpy. Raises NotInstalled."""
        try:
            import numpy as np  # noqa: PLC0415 - An extra, and slow to import.
            import pyarrow as pa  # noqa: PLC0415 - The same.
        except ImportError as error:
            raise NotInstalled(_MISSING) from error
        self._np: Any = np
        self._pa: Any = pa
        headers = pa.map_(pa.string(), pa.binary())
        self._schema = pa.schema(
            [
                ("id", pa.binary()),
                ("value", pa.binary()),
                ("key", pa.binary()),
                ("headers", headers),
            ]
        )
        entry = [headers.key_field, headers.item_field]
        self._no_entries = pa.array([], pa.struct(entry))
        self._zeros = pa.py_buffer(b"")
        self._nothing: tuple[int, list[Any]] = (-1, [])
        """The length of the last page without attributes, and its columns. The next page often has the same length."""

    def stream(self) -> ArrowStream:
        """Begin a stream."""
        sink = _ArrowSink()
        return ArrowStream(self, self._pa.ipc.new_stream(sink, self._schema), sink)

    def batch(self, page: PollPage) -> Any:
        """Return a page as a record batch. The page must have messages."""
        columns = [*self._columns(page.runs, page.count), *self._attributes(page)]
        return self._pa.record_batch(columns, schema=self._schema)

    def _attributes(self, page: PollPage) -> list[Any]:
        """Return the columns of keys and of headers."""
        pa, found = self._pa, page.attributes()
        if not found:
            known = self._nothing  # Read once: another thread may replace it.
            if known[0] != page.count:
                self._nothing = known = (page.count, self._nulls(page.count))
            return known[1]
        keys: list[bytes | None] = [None] * page.count
        counts, names, values = [0] * page.count, [], []
        for place, encoded in found:
            keys[place], some, their_values = attributes.parts(encoded)
            counts[place] = len(some)
            names += some
            values += their_values
        return [pa.array(keys, pa.binary()), self._headers(counts, names, values)]

    def _headers(self, counts: list[int], names: list[bytes], values: list[bytes]) -> Any:
        """Return the column of headers. Message i has ``counts[i]`` headers, and is null if that is 0."""
        np, pa, kind = self._np, self._pa, self._schema.types[-1]
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        validity = np.packbits(np.array(counts) > 0, bitorder="little")
        columns = [pa.array(names, pa.binary()).cast(pa.string()), pa.array(values, pa.binary())]
        entries = pa.StructArray.from_arrays(columns, fields=list(self._no_entries.type))
        buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(kind, len(counts), buffers, children=[entries])

    def _nulls(self, count: int) -> list[Any]:
        """Return the columns of keys and of headers for messages without any: their buffers are all zeros."""
        pa = self._pa
        offsets_bytes = 4 * (count + 1)
        zeros, (*_, key, headers) = self._zeros, self._schema.types
        if len(zeros) < offsets_bytes:
            self._zeros = zeros = pa.py_buffer(bytes(2 * offsets_bytes))
        rows = [zeros.slice(0, -(-count // 8)), zeros.slice(0, offsets_bytes)]
        return [
            pa.Array.from_buffers(key, count, [*rows, zeros.slice(0, 0)], count),
            pa.Array.from_buffers(headers, count, rows, count, children=[self._no_entries]),
        ]

    def _columns(self, runs: Sequence[Run], count: int) -> list[Any]:
        """Return the columns of ids and of payloads."""
        np = self._np
        counts = np.array([stop - first for _, first, stop, _ in runs])
        data, starts = self._join_items(runs, counts)
        begins = starts[:-1]
        heads: Any = _INLINE_BYTES
        if all(reference is None for _, _, _, reference in runs):
            ids = self._parts_at(data, begins + _LEAD_BYTES, MESSAGE_ID_BYTES)
        else:
            by_run = [
                _INLINE_BYTES if reference is None else LOG_KEY_BYTES for _, _, _, reference in runs
            ]
            heads = np.repeat(np.array(by_run, np.int32), counts)
            rows = b"".join([reference or LOG_KEY_MIN for _, _, _, reference in runs])
            references = np.repeat(np.frombuffer(rows, f"V{LOG_KEY_BYTES}"), counts)
            ids = self._ids(data, begins, heads, references)
        offsets = np.arange(0, MESSAGE_ID_BYTES * count + 1, MESSAGE_ID_BYTES, dtype=np.int32)
        sizes = np.diff(starts)
        payloads = begins + heads + self._length_bytes(sizes - heads)
        values = self._values(data, starts, sizes, payloads)
        return [self._binary(offsets, ids), values]

    def _values(self, data: Any, starts: Any, sizes: Any, payloads: Any) -> Any:
        """Return the column of payloads.

        Args:
            data: all items, joined.
            starts: where each item begins, and the end of the last one.
            sizes: the length of each item.
            payloads: where each payload begins.
        """
        np, count = self._np, len(sizes)
        size, payload = int(sizes[0]), int(starts[1] - payloads[0])
        if payload and (sizes == size).all() and (payloads - starts[:-1] == size - payload).all():
            # Payloads are often all of one size. This path does half the work.
            rows = np.ndarray((count,), f"V{payload}", data, size - payload, (size,))
            offsets = np.arange(0, payload * count + 1, payload, dtype=np.int32)
            found = self._pa.allocate_buffer(payload * count)
            np.copyto(np.frombuffer(found, rows.dtype), rows)
            return self._binary(offsets, found)
        pieces = np.empty(2 * count + 1, np.int32)
        pieces[::2], pieces[1::2] = starts, payloads
        every_second = self._pa.array(np.arange(1, 2 * count, 2, dtype=np.int32))
        return self._binary(pieces, data).take(every_second)

    def _binary(self, offsets: Any, data: Any) -> Any:
        """Return a column whose values are the parts of ``data`` between the offsets."""
        pa = self._pa
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

    def _join_items(self, runs: Sequence[Run], counts: Any) -> tuple[Any, Any]:
        """Return the items of all runs joined, and where each item begins, then the end of the last one."""
        np = self._np
        items = [entry.run(first, stop) for entry, first, stop, _ in runs]
        sizes = np.array([len(item) for item in items], np.int32)
        ends, stops = np.cumsum(sizes, dtype=np.int32), np.cumsum(counts)
        starts = np.empty(int(stops[-1]) + 1, np.int32)
        np.concatenate(self._starts(runs), out=starts[:-1], casting="unsafe")
        starts[:-1] += np.repeat(ends - sizes - starts[stops - counts], counts)
        starts[-1] = size = int(ends[-1])
        data = self._pa.allocate_buffer(size)
        view, at = memoryview(data).cast("B"), 0
        for item in items:
            view[at : at + len(item)] = item
            at += len(item)
        return data, starts

    def _starts(self, runs: Sequence[Run]) -> list[Any]:
        """Return where the items of each run begin in its entry, one run after the other."""
        np = self._np
        found: list[Any] = []
        for are_stored, some in groupby(runs, _has_stored_starts):
            if are_stored:
                parts: list[Any] = [
                    e.stored_starts[2 * first : 2 * stop] for e, first, stop, _ in some
                ]
                found.append(np.frombuffer(b"".join(parts), ">u2"))
                continue
            for entry, first, stop, _ in some:
                part = entry.starts[first:stop]
                if isinstance(part, range):
                    part = np.arange(part.start, part.stop, part.step)
                found.append(part)
        return found

    def _ids(self, data: Any, begins: Any, heads: Any, references: Any) -> Any:
        """Return the ids of a page that has messages in payload logs."""
        ids = self._np.empty((len(begins), 2), references.dtype)
        ids[:, 0] = references
        is_inline = heads == _INLINE_BYTES
        ids[is_inline, 0] = self._parts_at(data, begins[is_inline] + _LEAD_BYTES, LOG_KEY_BYTES)
        ids[:, 1] = self._parts_at(data, begins + heads - LOG_KEY_BYTES, LOG_KEY_BYTES)
        return ids

    def _parts_at(self, data: Any, places: Any, size: int) -> Any:
        """Return ``size`` bytes from each place."""
        return self._np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))[places]

    def _length_bytes(self, sizes: Any) -> Any:
        """Return how many bytes each payload's length takes. ``sizes`` counts the length and the payload together."""
        longest = int(sizes.max())
        found: Any = 1
        for length_bytes, payload_max in enumerate(_PAYLOADS_MAX, start=1):
            if longest <= length_bytes + payload_max:
                break
            found = found + (sizes > length_bytes + payload_max)
        return found


class ArrowStream:
    """One Arrow stream: record batches, then the end marker. A batch is a list of pieces, sent in their order."""

    def __init__(self, maker: ArrowMaker, writer: Any, sink: _ArrowSink) -> None:
        self._maker = maker
        self._writer = writer
        self._sink = sink

    def batch(self, page: PollPage) -> list[Piece]:
        """Return the bytes of a page as a batch. The page must have messages. Large columns are not copied."""
        self._writer.write_batch(self._maker.batch(page))
        return self._sink.pieces()

    def end(self) -> bytes:
        """Return the end marker. A stream without it was cut off."""
        self._writer.close()
        return self._sink.rest()


class _ArrowSink:
    """The file that pyarrow writes to. It gets bytes that pyarrow made, and buffers that pyarrow only passes on."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part)

    def flush(self) -> None:
        """Do nothing: this sink keeps all parts in memory."""

    def pieces(self) -> list[Piece]:
        """Return the parts written since the last call. Join small parts; don't copy large buffers.

        No piece is empty, since an empty chunk ends a reply.
        """
        pieces: list[Piece] = []
        parts, small = self._parts, 0
        for place, part in enumerate(parts):
            if len(part) >= _APART_BYTES:
                pieces += (b"".join(parts[small:place]), memoryview(part))
                small = place + 1
        pieces.append(b"".join(parts[small:]))
        parts.clear()
        return [piece for piece in pieces if piece]

    def rest(self) -> bytes:
        """Return the parts written since the last call, joined."""
        return b"".join(self._parts)


def _has_stored_starts(run: Run) -> bool:
    return isinstance(run[0].stored_starts, bytes)

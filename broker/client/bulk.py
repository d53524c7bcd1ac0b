"""Bulk reads: all messages of a range as Arrow record batches, resumed behind the last message seen.

An Arrow IPC stream is a list of messages in this form. The first one is a schema; the last one marks the end::

    ff ff ff ff | size | metadata (flatbuffer) | body        the metadata contain the size of the body
    ff ff ff ff | 0                                          the end; without it the stream was cut off

pyarrow can read a stream only if it is complete, or by blocking a thread. So this module finds the end of each
message, and pyarrow reads each message when it is complete. At most one batch is held in memory.

If a stream is cut off, or refused for now, the client requests it again behind the last id that it handed out. The
range ends at ``through``, and never contains newer messages. So a resumed read loses, repeats and reorders nothing. All
batches are of one generation of the topic.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.client import outcomes, protocol
from broker.client.calls import decoded, each_within
from broker.client.client_request import ClientRequest
from broker.client.dataframes import check_pyarrow, with_attributes
from broker.client.tail import ANSWER_S, Backoff, TailSource
from broker.client.transport import StreamedReply
from broker.errors import OutcomeUnknown, Unavailable, UnavailableError
from broker.http.outbound import REPLY_BYTES_MAX
from broker.model import MessageId, Snapshot
from broker.operations.media_types import ARROW

if TYPE_CHECKING:
    from pyarrow import RecordBatch as RecordBatch  # noqa: PLC0414 - The client names it, too.

_PREFIX = struct.Struct("<Ii")
_CONTINUES: Final = 0xFFFFFFFF
_METADATA_BYTES_MAX: Final = 1 << 20
_BODY_BYTES: Final = 4 + 2 * 3
"""The position, in the table of field offsets, of the fourth field of the metadata: the size of the body."""
_OFFSET, _SHORT = struct.Struct("<I"), struct.Struct("<H")
_TABLE, _LONG = struct.Struct("<i"), struct.Struct("<q")


class BulkRange(NamedTuple):
    """A range to read: ``(after, through]``, and the snapshot of the reader's transaction, if it has one.

    ``generation`` is that of the topic; None: the one that it has at the first answer.
    """

    after: MessageId | None
    through: MessageId
    snapshot: Snapshot | None = None
    generation: int | None = None


async def record_batches(
    source: TailSource, span: BulkRange, deadline_s: float
) -> AsyncGenerator[RecordBatch]:
    """Yield the batches of a range, none of them empty.

    Raises:
        ImportError: pyarrow is missing.
        TopicRecreated: the topic was deleted and created again.
        BrokerError: the range can't be read, or every attempt failed for ``deadline_s`` seconds.
    """
    arrow = check_pyarrow()
    backoff = Backoff(source.retrier, deadline_s)
    while True:
        request = protocol.arrow(source.topic, *span)
        try:
            async with (
                source.stream(request, backoff.attempt_s(ANSWER_S)) as reply,
                aclosing(
                    each_within(request, _batches(arrow, request, reply), backoff.ends)
                ) as batches,
            ):
                if span.generation is None:
                    span = span._replace(generation=protocol.generation(reply.headers))
                async for batch in batches:
                    span = span._replace(after=batch.column("id")[-1].as_py())
                    yield batch
                    backoff.succeeded()
        except UnavailableError as error:
            await backoff.failed(error)
        else:
            return


async def _batches(
    arrow: Any, request: ClientRequest, reply: StreamedReply
) -> AsyncGenerator[RecordBatch]:
    """Yield the batches of one reply. Raises Unavailable if it was cut off, or is not by a broker."""
    if reply.headers.get("content-type", ARROW) != ARROW:
        raise outcomes.foreign(request, reply)
    splitter, schema = MessageSplitter(), None
    async for chunk in reply.chunks:
        for message in decoded(request, reply, partial(splitter.feed, chunk)):
            buffer = arrow.py_buffer(message)
            if schema is None:
                schema = decoded(request, reply, partial(arrow.ipc.read_schema, buffer))
                continue
            batch = decoded(request, reply, partial(_batch, arrow, buffer, schema))
            if batch.num_rows:
                yield batch
    splitter.finish()


def _batch(arrow: Any, buffer: Any, schema: Any) -> RecordBatch:
    batch = arrow.ipc.read_record_batch(buffer, schema)
    batch.validate(
        full=True
    )  # Arrow trusts the places in a batch: a wrong one would end the process at the first use.
    if not batch.num_rows:
        return batch
    if any(batch.column(name).type != arrow.binary() for name in ("id", "value")):
        raise ValueError("its ids or values are not bytes")
    return with_attributes(batch)


class MessageSplitter:
    """Splits a stream, given in pieces of any size, into its complete messages."""

    def __init__(self) -> None:
        """Start before the first message."""
        self._ended = False
        self._pieces: list[bytes] = []
        self._missing = _PREFIX.size

    def feed(self, data: bytes) -> list[memoryview]:
        """Take a piece and return the messages that it completes.

        Raises:
            OutcomeUnknown: these bytes are not an Arrow stream.
        """
        messages: list[memoryview] = []
        if self._ended:
            return messages
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return messages
        whole, at = memoryview(b"".join(self._pieces)), 0
        while len(whole) - at >= (size := _size(whole[at:])):
            if size == _PREFIX.size:
                self._ended = True
                break
            messages.append(whole[at : at + size])
            at += size
        self._pieces = [bytes(whole[at:])]
        self._missing = size - (len(whole) - at)
        return messages

    def finish(self) -> None:
        """Check at the end of the input that the stream is complete. Raises Unavailable if it was cut off."""
        if not self._ended:
            raise Unavailable("The stream of record batches was cut off before its end.")


def _size(data: memoryview) -> int:
    """Return the size of the message at the beginning of ``data``.

    If too few bytes are there to compute it, return a number above their length. The end mark has the size of a
    prefix. Raises OutcomeUnknown.
    """
    if len(data) < _PREFIX.size:
        return _PREFIX.size
    mark, metadata_bytes = _PREFIX.unpack_from(data)
    if mark != _CONTINUES or not 0 <= metadata_bytes <= _METADATA_BYTES_MAX:
        raise OutcomeUnknown("The answer is not a stream of record batches.")
    size: int = _PREFIX.size + metadata_bytes
    if not metadata_bytes or len(data) < size:
        return size
    return size + _body_bytes(data[_PREFIX.size : size])


def _body_bytes(metadata: memoryview) -> int:
    """Return the size of a message's body, from its metadata, which are a flatbuffers table. Raises OutcomeUnknown."""
    try:
        (table,) = _OFFSET.unpack_from(metadata)
        fields = table - _TABLE.unpack_from(metadata, table)[0]
        (fields_bytes,) = _SHORT.unpack_from(metadata, fields)
        place = found = 0  # A missing field means zero.
        if fields_bytes > _BODY_BYTES:
            (place,) = _SHORT.unpack_from(metadata, fields + _BODY_BYTES)
        if place:
            (found,) = _LONG.unpack_from(metadata, table + place)
    except struct.error:
        found = -1
    if not 0 <= found <= REPLY_BYTES_MAX:
        raise OutcomeUnknown("The answer has an Arrow message of no possible size.")
    return found

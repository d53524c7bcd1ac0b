"""Bulk reads: all messages of a range as Arrow record batches, resumed behind the last message that was seen.

An Arrow IPC stream is messages of this form, the first of them a schema, and an end::

    ff ff ff ff | size | metadata (flatbuffer) | body        as long as the metadata says
    ff ff ff ff | 0                                          the end; without it the stream was cut off

pyarrow reads streams that wait for their bytes in a thread, or are there as a whole. So this module finds out where a
message ends, and pyarrow reads each as it is complete: no more than one batch is held.

A stream that is cut off, or refused for now, is asked for again behind the last id that was handed out. Ids behind
``through`` are no part of the range, so that nothing is lost, repeated or reordered by that.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.client import protocol
from broker.client.dataframes import check_pyarrow, with_attributes
from broker.client.tail import ANSWER_S, Backoff, TailSource
from broker.client.transport import StreamedReply
from broker.errors import OutcomeUnknown, Unavailable, UnavailableError
from broker.model import MessageId, Snapshot

if TYPE_CHECKING:
    from pyarrow import RecordBatch as RecordBatch  # noqa: PLC0414 - The client names it, too.

_PREFIX = struct.Struct("<Ii")
_CONTINUES: Final = 0xFFFFFFFF
_METADATA_BYTES_MAX: Final = 1 << 20
_BODY_BYTES: Final = 4 + 2 * 3
"""Where metadata say at which place their fourth field lies: how long the body is."""
_OFFSET, _SHORT = struct.Struct("<I"), struct.Struct("<H")
_TABLE, _LONG = struct.Struct("<i"), struct.Struct("<q")


class BulkRange(NamedTuple):
    """What is read: ``(after, through]``, and what the reader's transaction may see."""

    after: MessageId | None
    through: MessageId
    snapshot: Snapshot | None = None


async def record_batches(
    source: TailSource, span: BulkRange, deadline_s: float
) -> AsyncGenerator[RecordBatch]:
    """Give the batches of a range, none of them empty.

    Raises:
        ImportError: pyarrow is missing.
        BrokerError: the range can't be read, or could not be for ``deadline_s`` seconds on end.
    """
    arrow = check_pyarrow()
    patience = Backoff(source.retrier, deadline_s)
    while True:
        request = protocol.arrow(source.topic, span.after, span.through, span.snapshot)
        try:
            async with (
                source.stream(request, min(ANSWER_S, deadline_s)) as reply,
                aclosing(_batches(arrow, reply)) as batches,
            ):
                async for batch in batches:
                    span = span._replace(after=batch.column(0)[-1].as_py())
                    patience.succeeded()
                    yield batch
        except UnavailableError as error:
            await patience.failed(error)
        else:
            return


async def _batches(arrow: Any, reply: StreamedReply) -> AsyncGenerator[RecordBatch]:
    """Give the batches of one reply. Raises Unavailable if it was cut off."""
    splitter, schema = MessageSplitter(), None
    async for chunk in reply.chunks:
        for message in splitter.feed(chunk):
            if schema is None:
                schema = arrow.ipc.read_schema(arrow.py_buffer(message))
                continue
            batch = arrow.ipc.read_record_batch(arrow.py_buffer(message), schema)
            if batch.num_rows:
                yield with_attributes(batch)
    splitter.finish()


class MessageSplitter:
    """Takes a stream in pieces of any size, and gives out its messages, each as a whole."""

    def __init__(self) -> None:
        """Start before the first message."""
        self._ended = False
        self._pieces: list[bytes] = []
        self._missing = _PREFIX.size

    def feed(self, data: bytes) -> list[memoryview]:
        """Take a piece and return the messages that it completes.

        Raises:
            OutcomeUnknown: these bytes are no stream of Arrow's.
        """
        self._pieces.append(data)
        self._missing -= len(data)
        messages: list[memoryview] = []
        if self._ended or self._missing > 0:
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
        """Say that nothing more comes. Raises Unavailable: the stream was cut off."""
        if not self._ended:
            raise Unavailable("The stream of record batches was cut off before its end.")


def _size(data: memoryview) -> int:
    """Return how long the message at the beginning is, or, if that can't be told yet, more than is there.

    The end has the size of a prefix. Raises OutcomeUnknown.
    """
    if len(data) < _PREFIX.size:
        return _PREFIX.size
    mark, metadata_bytes = _PREFIX.unpack_from(data)
    if mark != _CONTINUES or not 0 <= metadata_bytes <= _METADATA_BYTES_MAX:
        raise OutcomeUnknown("The answer is no stream of record batches.")
    size: int = _PREFIX.size + metadata_bytes
    if not metadata_bytes or len(data) < size:
        return size
    return size + _body_bytes(data[_PREFIX.size : size])


def _body_bytes(metadata: memoryview) -> int:
    """Return how long a message's body is, by its metadata: a table of flatbuffers. Raises OutcomeUnknown."""
    try:
        (table,) = _OFFSET.unpack_from(metadata)
        fields = table - _TABLE.unpack_from(metadata, table)[0]
        (fields_bytes,) = _SHORT.unpack_from(metadata, fields)
        place = found = 0  # A field that is not there is zero.
        if fields_bytes > _BODY_BYTES:
            (place,) = _SHORT.unpack_from(metadata, fields + _BODY_BYTES)
        if place:
            (found,) = _LONG.unpack_from(metadata, table + place)
    except struct.error:
        found = -1
    if found < 0:
        raise OutcomeUnknown("The answer has a message of Arrow's without a size.")
    return found

"""The requests and the publish answer in Avro binary: raw datums of the schemas in the reference (http.md).

::

    publish, no transaction, a and b     02                     no pointer
                                         04  02 61  02 62  00   2 items; a; b; end of the array
    publish under 1, nothing             00 02                  pointer 1
                                         00                     end of the array

This decoder is written by hand for a reason. Four flat schemas need little code, and the input may be hostile. The
usual Avro decoders accept a negative union branch, let over-long numbers wrap around, trust a count of items before
they have read one, and can't read half a reply. This decoder refuses all of that in a single pass, and is not slower;
the encoder is several times faster. The tests compare both with an independent implementation, value by value.

Readers raise BadRequest, or TooManyMessages for a publish above its limit, always with the field's name. They ignore
bytes after the datum. `messages` has the replies to polls, which are streams.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from broker.errors import BadRequest, TooManyMessages
from broker.model import (
    MESSAGE_ID_BYTES,
    SEQ_MAX,
    LogKey,
    MessageId,
    Poll,
    PublishRequest,
    RollbackRange,
    log_key,
    unpack_log_key,
)
from broker.operations.media_types import AVRO
from broker.wire import Take, free
from broker.wire.transaction import decode_transaction, encode_transaction
from broker.wire.varint import (
    END,
    Malformed,
    encode_bytes,
    encode_long,
    read_bytes,
    read_int,
    read_long,
)

CONTENT_TYPE: Final = AVRO

_NULL_POINTER = b"\x02"
_Value = TypeVar("_Value")
_Read = Callable[[bytes, int], tuple[_Value, int]]
ReadBlock = Callable[[bytes, int, int, list[bytes]], int]
"""Takes the body, the position of a block, its count and the payloads read so far. Appends to them; returns its end."""


def encode_publish_request(request: PublishRequest) -> bytes:
    """Return the body of a publish or a store."""
    parts = [encode_pointer(request.pointer)]
    if request.payloads:
        parts.append(encode_long(len(request.payloads)))
        for payload in request.payloads:
            parts += (encode_long(len(payload)), payload)
    parts.append(END)
    return b"".join(parts)


def _read_payloads(body: bytes, at: int, count: int, payloads: list[bytes]) -> int:
    """Append ``count`` byte strings; return the position after the last. Raises Malformed, IndexError.

    This is the hottest loop of publishing. It decodes lengths of one and two bytes inline.
    """
    append, stop = payloads.append, len(body)
    for _ in range(count):
        low = body[at]
        if low & 1:
            raise Malformed("a length is negative")
        if low < 0x80:
            start = at + 1
            end = start + (low >> 1)
        elif (high := body[at + 1]) < 0x80:
            start = at + 2
            end = start + (high << 6) + (low >> 1) - 0x40
        else:
            payload, at = read_bytes(body, at)
            append(payload)
            continue
        if end > stop:
            raise IndexError
        append(body[start:end])
        at = end
    return at


def decode_publish_request(
    body: bytes, *, messages_max: int, take: Take = free, read_block: ReadBlock = _read_payloads
) -> PublishRequest:
    """Read the body of a publish or a store. It calls ``take`` for each block of messages.

    ``read_block`` reads the messages of a block, if they are not just payloads.

    Raises:
        BadRequest: the body is malformed.
        TooManyMessages: it has more than ``messages_max`` messages; the reader stopped before the excess ones.
    """
    pointer, at = _pointer(body)
    payloads: list[bytes] = []
    try:
        while True:
            count, at = _read_count(body, at, len(payloads), messages_max)
            if count == 0:
                return PublishRequest(pointer, payloads)
            take(count)
            at = read_block(body, at, count, payloads)
    except IndexError:
        raise _ends_in("messages") from None
    except Malformed as error:
        raise _malformed("messages", error) from None


def _pointer(body: bytes) -> tuple[int | None, int]:
    if body[:1] == _NULL_POINTER:
        return None, 1
    return _field("transactionWritePointer", _OPTIONAL_LONG, body, 0)


def _read_count(body: bytes, at: int, read: int, messages_max: int) -> tuple[int, int]:
    """Return the number of messages in a block of the array, and the position of the first. ``read`` were read before.

    Raises:
        Malformed, IndexError: there is no count.
        BadRequest: the body is too short for the count.
        TooManyMessages: there are more than ``messages_max`` messages in all.
    """
    count, at = read_long(body, at)
    if count < 0:
        # The other legal form: -count, then the block's size in bytes, which this reader does not use.
        count = -count
        _, at = read_long(body, at)
    if count > len(body) - at:
        raise BadRequest("messages: the body is too short for its count of messages.")
    if count > messages_max - read:
        raise TooManyMessages(f"messages: a request may have {messages_max} messages, not more.")
    return count, at


def encode_publish_response(span: RollbackRange) -> bytes:
    """Return the answer to a transactional publish, which is also the body of its rollback."""
    first_ms, first_seq = unpack_log_key(span.first)
    last_ms, last_seq = unpack_log_key(span.last)
    return b"".join(
        (
            encode_pointer(span.pointer),
            encode_long(first_ms),
            encode_long(first_seq),
            encode_long(last_ms),
            encode_long(last_seq),
        )
    )


def decode_publish_response(body: bytes) -> RollbackRange:
    """Read the answer to a transactional publish. Raises BadRequest, also if it has no pointer."""
    pointer, at = _field("transactionWritePointer", _OPTIONAL_LONG, body, 0)
    if pointer is None:
        raise BadRequest("transactionWritePointer: a rollback needs a write pointer, not null.")
    first, at = _read_log_key(body, at, "start")
    last, _ = _read_log_key(body, at, "end")
    return RollbackRange(pointer, first, last)


def _read_log_key(body: bytes, at: int, end: str) -> tuple[LogKey, int]:
    timestamp_ms, at = _field(f"{end}Timestamp", read_long, body, at)
    seq, at = _field(f"{end}SequenceId", read_int, body, at)
    return checked_log_key(timestamp_ms, seq, end), at


def checked_log_key(timestamp_ms: int, seq: int, end: str) -> LogKey:
    """Return one end of a rollback range as a log key. Raises BadRequest."""
    if timestamp_ms < 0:
        raise BadRequest(f"{end}Timestamp: a time can't be negative ({timestamp_ms}).")
    if not 0 <= seq <= SEQ_MAX:
        raise BadRequest(f"{end}SequenceId: not between 0 and {SEQ_MAX} ({seq}).")
    return log_key(timestamp_ms, seq)


def encode_poll(poll: Poll) -> bytes:
    """Return the body of a poll."""
    if poll.start is None:
        start = b"\x04"
    elif isinstance(poll.start, int):
        start = b"\x02" + encode_long(poll.start)
    else:
        start = b"\x00" + encode_bytes(poll.start)
    limit = b"\x02" if poll.limit is None else b"\x00" + encode_long(poll.limit)
    if poll.snapshot is None:
        transaction = b"\x02"
    else:
        transaction = b"\x00" + encode_bytes(encode_transaction(poll.snapshot))
    return b"".join((start, b"\x01" if poll.inclusive else b"\x00", limit, transaction))


def decode_poll(body: bytes, *, take: Take = free) -> Poll:
    """Read the body of a poll. It calls ``take`` for the snapshot's pointers. Raises BadRequest."""
    start, at = _field("startFrom", _read_start, body, 0)
    inclusive, at = _field("inclusive", _read_boolean, body, at)
    limit, at = _field("limit", _OPTIONAL_INT, body, at)
    if limit is not None:
        checked_limit(limit)
    transaction, _ = _field("transaction", _OPTIONAL_BYTES, body, at)
    snapshot = None if transaction is None else decode_transaction(transaction, take=take)
    return Poll(start=start, inclusive=inclusive, limit=limit, snapshot=snapshot)


def _read_start(body: bytes, at: int) -> tuple[MessageId | int | None, int]:
    branch, at = read_int(body, at)
    if branch == 0:
        identifier, at = read_bytes(body, at)
        return checked_message_id(identifier), at
    if branch == 1:
        time_ms, at = read_long(body, at)
        return checked_time(time_ms), at
    _check_null(branch, 2)
    return None, at


def _read_boolean(body: bytes, at: int) -> tuple[bool, int]:
    if body[at] > 1:
        raise Malformed(f"a boolean is 0 or 1, not {body[at]}")
    return body[at] == 1, at + 1


def read_optional(
    body: bytes, at: int, read: Callable[[bytes, int], tuple[_Value, int]], null: int = 1
) -> tuple[_Value | None, int]:
    """Return the value of a union with null, or None, and the position after it. ``null`` is the branch of null, 0 or 1.

    Raises:
        Malformed, IndexError: there is no such union.
    """
    branch, at = read_int(body, at)
    if branch == 1 - null:
        return read(body, at)
    _check_null(branch, null)
    return None, at


_OPTIONAL_INT = partial(read_optional, read=read_int)
_OPTIONAL_LONG = partial(read_optional, read=read_long)
_OPTIONAL_BYTES = partial(read_optional, read=read_bytes)


def encode_pointer(pointer: int | None) -> bytes:
    """Return the Avro form of a write pointer, or of null."""
    return _NULL_POINTER if pointer is None else b"\x00" + encode_long(pointer)


def _check_null(branch: int, null_branch: int) -> None:
    if branch != null_branch:
        raise Malformed(f"the union has no branch {branch}")


def checked_message_id(identifier: bytes) -> MessageId:
    """Return the first 20 bytes of an id, as the original does. Raises BadRequest if it is shorter."""
    if len(identifier) < MESSAGE_ID_BYTES:
        raise BadRequest(
            f"startFrom: a message id has {MESSAGE_ID_BYTES} bytes, not {len(identifier)}."
        )
    return identifier[:MESSAGE_ID_BYTES]


def checked_time(time_ms: int) -> int:
    """Return a start time in ms. Raises BadRequest if it is negative."""
    if time_ms < 0:
        raise BadRequest(f"startFrom: a start time can't be negative ({time_ms}).")
    return time_ms


def checked_limit(limit: int) -> int:
    """Return a limit. Raises BadRequest if it is not at least one message."""
    if limit <= 0:
        raise BadRequest(f"limit: must be at least 1, not {limit}.")
    return limit


def _field(name: str, read: _Read[_Value], body: bytes, at: int) -> tuple[_Value, int]:
    """Read a field. Raises BadRequest with the field's name."""
    try:
        return read(body, at)
    except IndexError:
        raise _ends_in(name) from None
    except Malformed as error:
        raise _malformed(name, error) from None


def _ends_in(name: str) -> BadRequest:
    """Return the error for a body that ends within a field."""
    return BadRequest(f"{name}: the body ends in the middle of this field.")


def _malformed(name: str, error: Malformed) -> BadRequest:
    """Return the error for a field that does not match its schema."""
    return BadRequest(f"{name}: {error}.")

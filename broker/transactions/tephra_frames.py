"""Decode the calls of Tephra's clients and encode the answers: Thrift's binary protocol, one message in a frame.

::

    frame      length (int32) | message
    message    80 01 00 type | name (length, bytes) | number (int32) | struct of arguments, or of the result
    result     field 0: the return value of the method; other fields: the exceptions that it declares

thriftpy2 knows the methods from the IDL (tephra.thrift), and reads and writes values. But it trusts the counts that it
reads, and reads everything at once. So this module gives it one value at a time, from a body that ends with its bytes.
It counts the items of a set before it reads them. It skips unwanted values in bounded time
(wire/thriftskip.py). Of a transaction that a client sends, it reads only the numbers: the service knows the rest
better.
"""

from __future__ import annotations

import io
import struct
from importlib import resources
from types import ModuleType
from typing import Any, Final, NamedTuple

import thriftpy2
from thriftpy2.protocol import binary
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TMessageType, TType

from broker.errors import BadRequest, BodyTooLarge, ChangesTooLarge
from broker.model import Snapshot
from broker.wire import Take, free
from broker.wire.thriftskip import SEGMENT_BYTES, SET, Segments, Skipper
from broker.wire.transaction import encode_transaction

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest frame that is read, as in Tephra's server."""
ANSWER_BYTES_MAX: Final = 16_384_000
"""The longest frame that Java's framed transport reads by default."""
IDS_MAX: Final = 100_000
"""The most ids of a set."""
TEXT_BYTES_MAX: Final = 1024 * 1024
FIELDS_MAX: Final = 100
"""The most fields of the arguments, repeated fields included."""

_LENGTH: Final = struct.Struct(">i")
LENGTH_BYTES: Final = _LENGTH.size
_HEAD_BYTES_MAX: Final = 256
_PLAIN: Final = frozenset({TType.I32, TType.I64, TType.STRING})
_TEXTS: Final = frozenset({TType.STRING, TType.BINARY})


Frame = bytes | bytearray | Segments
"""A message, without its frame's length. It never changes."""


class NoCall(Exception):
    """These bytes are not a call. No answer to them is possible, so the connection ends."""


class NoMethod(Exception):
    """The method of a call does not exist."""

    def __init__(self, head: FrameHead) -> None:
        """Keep the head of the call."""
        super().__init__(f"There is no method {head.method!r}.")
        self.head = head


class TephraCall(NamedTuple):
    """A call. ``arguments`` has the known arguments that were sent, by their field numbers.

    A number is an int. A text is a str, or bytes if it is not UTF-8. A set is a list. A transaction is a dict of its
    numbers.
    """

    method: str
    number: int
    arguments: dict[int, Any]


class Incoming:
    """The frame that arrives on a connection. It is kept in segments, since one growing buffer would often be copied."""

    def __init__(self) -> None:
        """Begin without bytes."""
        self._begun = b""
        """The first bytes of the length."""
        self._length: int | None = None
        self._segments: list[bytearray] = [bytearray()]
        """The bytes that have arrived. The last segment grows."""
        self._missing = 0
        self._is_call = False

    @property
    def has_begun(self) -> bool:
        """True if a part of a frame has arrived."""
        return self._length is not None or bool(self._begun)

    def feed(self, data: bytes) -> tuple[list[bytearray] | None, bytes]:
        """Take bytes that have arrived. Return the frame's segments if it is whole, and the bytes behind it.

        Raises:
            NoCall: the frame is too long, or not a call. This is raised before the frame is whole.
        """
        if self._length is None:
            need = _LENGTH.size - len(self._begun)
            self._begun, data = self._begun + data[:need], data[need:]
            if len(self._begun) < _LENGTH.size:
                return None, b""
            (length,) = _LENGTH.unpack(self._begun)
            if not 0 < length <= FRAME_BYTES_MAX:
                raise NoCall(f"a frame has {length} bytes; it may have at most {FRAME_BYTES_MAX}")
            self._length = self._missing = length
        taken, rest = memoryview(data)[: self._missing], data[self._missing :]
        self._missing -= len(taken)
        room = SEGMENT_BYTES - len(self._segments[-1])
        self._segments[-1] += taken[:room]
        if len(taken) >= room and (self._missing or taken[room:]):
            self._segments.append(bytearray(taken[room:]))
        if not self._is_call and self._length - self._missing >= min(self._length, _HEAD_BYTES_MAX):
            read_head(self._segments[0][:_HEAD_BYTES_MAX])
            self._is_call = True
        if self._missing:
            return None, b""
        frame = self._segments
        self.__init__()  # type: ignore[misc]  # Reset all fields; __init__ has the only list of them.
        return frame, rest


class Idl:
    """The methods and structs of the IDL."""

    def __init__(self) -> None:
        """Read the IDL, which is a file of this package."""
        with resources.as_file(resources.files(__package__) / "tephra.thrift") as path:
            self.module: ModuleType = thriftpy2.load(str(path), module_name="tephra_thrift")
        self._service: Any = self.module.TTransactionServer
        self.methods: frozenset[str] = frozenset(self._service.thrift_services)

    def arguments(self, method: str) -> dict[int, tuple[Any, ...]]:
        """Return the type, name, item type and "required" of each argument of a method, by field number."""
        specs: dict[int, tuple[Any, ...]] = getattr(self._service, f"{method}_args").thrift_spec
        return specs

    def result(self, method: str) -> Any:
        """Return an empty result of a method."""
        return getattr(self._service, f"{method}_result")()


class _Body:
    """A body that thriftpy2 reads. A read past its end is refused."""

    def __init__(self, body: Frame, at: int = 0) -> None:
        self.body = body
        self.at = at

    def read(self, count: int) -> bytes:
        """Return the next bytes. Raises BadRequest if there are fewer."""
        start = self.at
        self.skip(count)
        return bytes(self.body[start : self.at])

    def skip(self, count: int) -> None:
        """Pass over the next bytes. Raises BadRequest if there are fewer."""
        if not 0 <= count <= len(self.body) - self.at:
            raise BadRequest("The message ends in the middle of a value.")
        self.at += count


class FrameHead(NamedTuple):
    """The head of a message, and the place where its struct begins."""

    method: str
    kind: int
    number: int
    at: int


def read_head(frame: Frame) -> FrameHead:
    """Read the head of a message. Raises NoCall."""
    body = _Body(frame[:_HEAD_BYTES_MAX])
    try:
        method, kind, number = binary.read_message_begin(body, strict=True)
    except (BadRequest, TProtocolException, UnicodeDecodeError) as error:
        raise NoCall("it does not begin with a head of Thrift's binary protocol") from error
    if kind != TMessageType.CALL:
        raise NoCall(f"its message type is {kind}, but a call has {TMessageType.CALL}")
    return FrameHead(method, kind, number, body.at)


class Most(NamedTuple):
    """The bounds of the sets of one call: ids, keys, and bytes of keys."""

    ids: int = IDS_MAX
    keys: int = 10_000
    key_bytes: int = 1024 * 1024


MOST: Final = Most()


def read_call(
    idl: Idl, frame: Frame, head: FrameHead, *, most: Most = MOST, take: Take = free
) -> TephraCall:
    """Read a call. ``take`` counts the items of sets.

    Raises:
        NoMethod: the method does not exist.
        BadRequest: the arguments are malformed.
        ChangesTooLarge: the call has too many keys, or too many bytes of keys.
        BodyTooLarge: the call has too many ids.
    """
    if head.method not in idl.methods:
        raise NoMethod(head)
    reader = _StructReader(frame, head.at, most, take)
    arguments = reader.struct(idl.arguments(head.method))
    if reader.body.at != len(frame):
        raise BadRequest("The message has bytes behind the arguments.")
    return TephraCall(head.method, head.number, arguments)


class _StructReader:
    """Reads one struct of arguments."""

    def __init__(self, frame: Frame, at: int, most: Most, take: Take) -> None:
        self._most = most
        self.body = _Body(frame, at)
        self._skipper = Skipper(frame, "message")
        self._take = take
        self._fields = 0
        self._items = 0
        self._key_bytes = 0

    def struct(self, specs: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Return the fields of a struct that are known and have the declared type."""
        found: dict[int, Any] = {}
        while True:
            kind, number = binary.read_field_begin(self.body)
            if kind == TType.STOP:
                return found
            spec = specs.get(number, (None,))
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise BadRequest(f"The message has more than {FIELDS_MAX} fields.")
            if kind == spec[0] and kind in _PLAIN:
                found[number] = self._plain(kind)
            elif kind in {TType.SET, TType.LIST} and spec[0] == TType.SET:
                found[number] = self._set(spec[2])
            elif kind == TType.STRUCT and spec[0] == TType.STRUCT:
                found[number] = self.struct(_numbers_of(spec[2]))
            else:
                self._skip(kind)

    def _plain(self, kind: int) -> Any:
        if kind == TType.STRING:
            (size,) = _LENGTH.unpack(self.body.read(_LENGTH.size))
            if size > TEXT_BYTES_MAX:
                raise BadRequest(f"A text has {size} bytes. It may have at most {TEXT_BYTES_MAX}.")
            self.body.at -= _LENGTH.size
        return binary.read_val(self.body, kind)

    def _set(self, wanted: int) -> list[Any]:
        start = self.body.at
        kind, count = binary.read_list_begin(self.body)
        if kind != wanted and not (kind in _TEXTS and wanted in _TEXTS):
            self.body.at = start
            self._skip(SET)
            return []
        if not 0 <= count <= len(self.body.body):
            raise BadRequest(f"A set can't have {count} items.")
        self._items += count
        if wanted in _TEXTS:
            return self._keys(count)
        if self._items > self._most.ids:
            raise BodyTooLarge(f"A set has {count} items. It may have at most {self._most.ids}.")
        self._take(count)
        return [binary.read_val(self.body, wanted) for _ in range(count)]

    def _keys(self, count: int) -> list[Any]:
        most = self._most
        if self._items > most.keys:
            raise ChangesTooLarge(
                f"The change set has {self._items} keys. It may have at most {most.keys}."
            )
        self._take(count)
        keys: list[Any] = []
        for _ in range(count):
            (size,) = _LENGTH.unpack(self.body.read(_LENGTH.size))
            self._key_bytes += max(size, 0)
            if self._key_bytes > most.key_bytes:
                raise ChangesTooLarge(
                    f"The keys of the change set have {self._key_bytes} bytes or more. They may have at most "
                    f"{most.key_bytes}."
                )
            self.body.at -= _LENGTH.size
            keys.append(binary.read_val(self.body, TType.BINARY))
        return keys

    def _skip(self, kind: int) -> None:
        try:
            end = self._skipper.past(self.body.at, kind)
        except (IndexError, struct.error):
            end = len(self.body.body) + 1
        self.body.skip(end - self.body.at)


def _numbers_of(described: Any) -> dict[int, tuple[Any, ...]]:
    """Return the fields of a struct that are numbers."""
    specs = described.thrift_spec
    return {number: spec for number, spec in specs.items() if spec[0] == TType.I64}


def encode_returned(idl: Idl, call: FrameHead | TephraCall, value: object) -> bytes:
    """Return the frame of a result. ``value`` has the method's return type; None if the method returns nothing.

    Raises:
        BodyTooLarge: Java's transport would not read a frame of this length.
    """
    out = _begun(call, TMessageType.REPLY)
    if isinstance(value, Snapshot):
        binary.write_field_begin(out, TType.STRUCT, 0)
        out.write(encode_transaction(value))
        binary.write_field_stop(out)
    else:
        result = idl.result(call.method)
        if value is not None:
            result.success = value
        binary.write_val(out, TType.STRUCT, result)
    return _frame(out)


def encode_thrown(idl: Idl, call: FrameHead | TephraCall, thrown: object) -> bytes | None:
    """Return the frame of an exception that the method declares; None if it does not declare this one."""
    result = idl.result(call.method)
    for number, spec in result.thrift_spec.items():
        if number and spec[2] is type(thrown):
            setattr(result, spec[1], thrown)
            out = _begun(call, TMessageType.REPLY)
            binary.write_val(out, TType.STRUCT, result)
            return _frame(out)
    return None


def encode_failed(call: FrameHead | TephraCall, kind: int, message: str) -> bytes:
    """Return the frame of an error that no method declares: a TApplicationException of this kind."""
    out = _begun(call, TMessageType.EXCEPTION)
    binary.write_val(out, TType.STRUCT, TApplicationException(kind, message))
    return _frame(out)


UNKNOWN_METHOD: Final[int] = TApplicationException.UNKNOWN_METHOD
INTERNAL_ERROR: Final[int] = TApplicationException.INTERNAL_ERROR
PROTOCOL_ERROR: Final[int] = TApplicationException.PROTOCOL_ERROR


def _begun(call: FrameHead | TephraCall, kind: int) -> io.BytesIO:
    out = io.BytesIO(bytes(_LENGTH.size))
    out.seek(_LENGTH.size)
    binary.write_message_begin(out, call.method, kind, call.number)
    return out


def _frame(out: io.BytesIO) -> bytes:
    size = out.tell() - _LENGTH.size
    if size > ANSWER_BYTES_MAX:
        raise BodyTooLarge(
            f"The answer has {size} bytes, but Tephra's client reads at most {ANSWER_BYTES_MAX}."
        )
    with out.getbuffer() as whole:
        _LENGTH.pack_into(whole, 0, size)
    return out.getvalue()

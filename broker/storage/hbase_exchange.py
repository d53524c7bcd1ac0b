"""One request and its answer in the event loop, on a connection that stands ready.

Handing a call to a thread and back costs more than the call itself where many are short: two turns of the
interpreter's lock and two wake-ups for each of a commit's two calls. So what is written, and what is read of
single rows, is spoken here; thriftpy2 turns structs into bytes and back, and the bytes go by the loop::

    encoded ──▶ sent, as fast as the socket takes it ──▶ bytes arrive until the answer is whole ──▶ decoded

An unframed answer does not say how long it is, and thriftpy2 takes what is missing at the end of a buffer for
whatever lies in memory there. So ``is_whole`` walks over its fields before anything is decoded.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Any

import thriftpy2.protocol
import thriftpy2.transport
from thriftpy2.thrift import TApplicationException, TMessageType, TType

from broker.storage.hbase_connections import IDL

_transport: Any = thriftpy2.transport  # Neither has types.
_protocol: Any = thriftpy2.protocol
_service: Any = IDL.THBaseService

READ_BYTES = 1 << 16
_I32, _I16 = struct.Struct(">i"), struct.Struct(">h")
_FIXED = {
    TType.BOOL: 1,
    TType.BYTE: 1,
    TType.DOUBLE: 8,
    TType.I16: 2,
    TType.I32: 4,
    TType.I64: 8,
}
_NAME_AT = 4
"""Where a message's name begins: after its version and kind."""


class AnswerCut(ConnectionError):
    """The gateway ended the connection before the answer was whole, or said what is no answer."""


def encode(api: str, arguments: tuple[object, ...]) -> bytes:
    """Return the bytes of a call."""
    buffer = _transport.TMemoryBuffer()
    protocol = _protocol.TBinaryProtocol(buffer)
    protocol.write_message_begin(api, TMessageType.CALL, 0)
    given = getattr(_service, f"{api}_args")()
    for (_, name, *_), argument in zip(given.thrift_spec.values(), arguments, strict=True):
        setattr(given, name, argument)
    given.write(protocol)
    protocol.write_message_end()
    encoded: bytes = buffer.getvalue()
    return encoded


def decode(api: str, answer: bytes | Exception) -> Any:
    """Return what a whole answer says. Raises TException, what the gateway tells of, and ``answer``."""
    if isinstance(answer, Exception):
        raise answer
    protocol = _protocol.TBinaryProtocol(_transport.TMemoryBuffer(answer))
    _, kind, _ = protocol.read_message_begin()
    if kind == TMessageType.EXCEPTION:
        error = TApplicationException()
        error.read(protocol)
        raise error
    result = getattr(_service, f"{api}_result")()
    result.read(protocol)
    told = dict(result.__dict__)
    value = told.pop("success", None)
    for error in told.values():
        if error is not None:
            raise error
    if value is None and hasattr(result, "success"):
        raise TApplicationException(TApplicationException.MISSING_RESULT, "no result")
    return value


def is_whole(answer: bytes | bytearray) -> bool:
    """Whether a message has arrived to its end. Raises AnswerCut if it is none."""
    try:
        if len(answer) >= _I32.size and _I32.unpack_from(answer)[0] >= 0:
            raise AnswerCut(f"not an answer: {bytes(answer[:16])!r}")
        at = _NAME_AT + _I32.size + _length(answer, _NAME_AT) + _I32.size
        end = _after(answer, at, TType.STRUCT)
    except (IndexError, struct.error):
        return False
    if end < len(answer):
        raise AnswerCut("more than one answer")
    return end == len(answer)


def _length(data: bytes | bytearray, at: int) -> int:
    length: int = _I32.unpack_from(data, at)[0]
    if length < 0:
        raise AnswerCut(f"a length of {length} in an answer")
    return length


def _after(data: bytes | bytearray, at: int, kind: int) -> int:
    """Return where a value ends that begins at ``at``. Raises IndexError, struct.error: not yet here."""
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind == TType.STRING:
        return at + _I32.size + _length(data, at)
    if kind == TType.STRUCT:
        while (field := data[at]) != TType.STOP:
            at = _after(data, at + 1 + _I16.size, field)
        return at + 1
    if kind in {TType.LIST, TType.SET}:
        kinds = data[at : at + 1]
    elif kind == TType.MAP:
        kinds = data[at : at + 2]
    else:
        raise AnswerCut(f"a value of kind {kind} in an answer")
    at += 1 if kind != TType.MAP else 2
    count, at = _length(data, at), at + _I32.size
    for _ in range(count):
        for each in kinds:
            at = _after(data, at, each)
    return at


class Exchange:
    """Sends a request and waits for the answer; nothing blocks.

    ``ended`` is called once: with the whole answer, or with why there is none.
    """

    def __init__(
        self, file: int, request: bytes, ended: Callable[[bytes | Exception], None], answer_s: float
    ) -> None:
        """Begin, on a socket that does not block and on which nothing is under way."""
        self._loop = asyncio.get_running_loop()
        self._file = file
        self._left = memoryview(request)
        self._answer = bytearray()
        self._ended = ended
        self._is_writing = False
        self._is_over = False
        self._timer = self._loop.call_later(answer_s, self._end, TimeoutError("no answer in time"))
        self._loop.add_reader(file, self._read)
        self._write()

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._file, self._left) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error)
            return
        if bool(self._left) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._file, self._write)
            else:
                self._loop.remove_writer(self._file)

    def _read(self) -> None:
        try:
            piece = os.read(self._file, READ_BYTES)
            if not piece:
                raise AnswerCut("the gateway ended the connection")
            self._answer += piece
            if is_whole(self._answer):
                self._end(bytes(self._answer))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)

    def _end(self, how: bytes | Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        self._loop.remove_reader(self._file)
        if self._is_writing:
            self._loop.remove_writer(self._file)
        self._ended(how)

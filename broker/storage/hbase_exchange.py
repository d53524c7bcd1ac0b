"""Requests and their answers in the event loop, on connections that stand ready.

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
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import thriftpy2
import thriftpy2.protocol
import thriftpy2.transport
from thriftpy2.thrift import TApplicationException, TMessageType, TType

IDL = thriftpy2.load(str(Path(__file__).with_name("hbase2.thrift")), module_name="hbase2_thrift")
"""The structs and the service of the Thrift-2 gateway."""

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
    if answer in _COMMON:
        return _COMMON[answer]
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


Ended = Callable[[bytes | Exception], None]


class Line:
    """A connection's socket in the event loop: one request at a time, and the answer; nothing blocks.

    The loop looks at the socket all the time, also between calls: to begin and to end that for each call
    would cost more than reading its answer.
    """

    def __init__(self, file: int) -> None:
        """Use a socket that does not block, and on which nothing is under way."""
        self.is_over = False
        """Whether nothing can be asked any more: it ended, or said what nobody asked for."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._file = file
        self._left: memoryview | bytes = b""
        self._answer = b""
        self._ended: Ended | None = None
        self._due = 0.0
        """When the answer to the last request must be there, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self._loop.add_reader(file, self._read)

    def ask(self, request: bytes, ended: Ended, answer_s: float) -> None:
        """Send a request; ``ended`` is called once, with the whole answer or why there is none."""
        assert self._ended is None, "one request at a time"
        self._ended = ended
        self._left = request
        self._write()
        self._due = self._loop.time() + answer_s
        if not self.is_over and (self._timer is None or self._due < self._timer.when()):
            self._look_later()

    def _write(self) -> None:
        try:
            sent = os.write(self._file, self._left)
            self._left = memoryview(self._left)[sent:] if sent < len(self._left) else b""
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
            if self._ended is None:
                raise AnswerCut("an answer that nobody asked for")
            self._answer = self._answer + piece if self._answer else piece
            if self._answer in _COMMON or is_whole(self._answer):
                if self._left:
                    # The rest of the request would be the beginning of the next one.
                    raise AnswerCut("an answer to half a request")
                self._end(self._answer)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Look whether the answer is overdue. A timer for each request would cost as much as its answer."""
        self._timer = None
        if self._ended is None:
            return
        if self._loop.time() < self._due:
            self._look_later()
        else:
            self._end(TimeoutError("no answer in time"))

    def _end(self, how: bytes | Exception) -> None:
        ended, self._ended = self._ended, None
        self._answer = b""
        if isinstance(how, Exception):
            self.leave()
        if ended is not None:
            ended(how)

    def close(self, close_socket: Callable[[], None]) -> None:
        """Close the socket, from any thread: once the loop does not look at it any more.

        Else the loop would take another socket of the same number for it.
        """
        if threading.get_ident() == self._thread or self._loop.is_closed():
            self._close(close_socket)
        else:
            self._loop.call_soon_threadsafe(self._close, close_socket)

    def _close(self, close_socket: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self.leave()
        close_socket()

    def leave(self) -> None:
        """Look at the socket no more."""
        if not self.is_over:
            self.is_over = True
            self._loop.remove_reader(self._file)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._is_writing:
                self._is_writing = False
                self._loop.remove_writer(self._file)


def _reply(api: str, **fields: object) -> bytes:
    buffer = _transport.TMemoryBuffer()
    protocol = _protocol.TBinaryProtocol(buffer)
    protocol.write_message_begin(api, TMessageType.REPLY, 0)
    getattr(_service, f"{api}_result")(**fields).write(protocol)
    protocol.write_message_end()
    reply: bytes = buffer.getvalue()
    return reply


_COMMON: Final = {
    _reply("put"): None,
    _reply("putMultiple"): None,
    _reply("checkAndPut", success=True): True,
    _reply("checkAndPut", success=False): False,
}
"""What nearly all writes are answered, and what it says: whole, and not worth a look inside."""

"""One connection to a gateway: one request at a time, and its answer.

A gateway closes a connection that was idle for 60 s, without any message. A request sent after that would be lost,
with an unknown outcome. So a line is over if any event arrived on it without a request: that is how the end of a
stream looks. ``is_silent`` also asks the operating system, because the event loop may not have seen the event yet.
If the loop itself sees the end of the connection, the line is over at once.

All of this runs in the event loop. The table compares ways to talk to one gateway of HBase 2.6.1, measured in turns
on two cores at a load of 10 (trust the ratios). The cases are one head, and 20 cells of 16 KiB. The values are the
median of a lone call, this process's time of it, and calls a second with 8 in flight:

==========================================  =========================  =========================
the loop's transport (this)                 0.62 ms, 0.13 ms, 3,093/s  2.0 ms, 0.33 ms, 431/s
a socket that the loop watches, thriftpy2  0.67 ms, 0.15 ms, 2,032/s  4.0 ms, 1.19 ms, 206/s
threads, thriftpy2                          0.94 ms, 0.40 ms, 1,722/s  2.5 ms, 0.75 ms, 374/s
thriftpy2.contrib.aio                       1.64 ms, 0.40 ms, 695/s    11.1 ms, 3.21 ms, 85/s
==========================================  =========================  =========================
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, cast

from typing_extensions import override

from broker.storage.hbase import thrift

Settle = Callable[[Any, Exception | None], None]


class LineCut(ConnectionError):
    """The connection ended before the answer was complete, or the gateway sent bytes without a request."""


class Line(asyncio.Protocol):
    """An open connection. ``last_used`` is a time of the loop's clock."""

    def __init__(self, left: Callable[[Line], None]) -> None:
        """Make the protocol of a connection; ``left`` is called when the line is over."""
        self.is_over = False
        self.last_used = 0.0
        self.closed = asyncio.get_running_loop().create_future()
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._settle: Settle | None = None
        self._pieces: list[bytes] = []
        self._arrived = 0
        self._needed = 0
        """The smallest possible size of the answer, as known until now."""
        self._due = 0.0
        """The deadline for the answer to the last request."""
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll = select.poll()
        connected: socket.socket = transport.get_extra_info("socket")
        self._poll.register(connected.fileno(), select.POLLIN)

    def is_silent(self) -> bool:
        """True if no bytes have arrived, and the stream has not ended."""
        return not self.is_over and not self._poll.poll(0)

    def ask(self, request: bytes, answer_s: float, settle: Settle) -> None:
        """Send a request; ``settle`` is called once, with the answer or the error."""
        assert self._settle is None, "one request at a time"
        self._settle = settle
        self._due = self._loop.time() + answer_s
        if self._timer is None or self._due < self._timer.when():
            self._set_timer()
        self._transport.write(request)

    @override
    def data_received(self, data: bytes) -> None:
        if self._settle is None:
            self.end(LineCut("the gateway sent an answer without a request"))
            return
        self._pieces.append(data)
        self._arrived += len(data)
        if self._arrived < self._needed or (data[-1] and self._pieces[0].startswith(thrift.BEGIN)):
            return  # Not complete: the last byte of an answer is the STOP of a struct.
        answer = b"".join(self._pieces)
        self._pieces = [answer]
        try:
            value = thrift.answer(answer)
        except thrift.ShortAnswer as short:
            self._needed = short.needed
        except thrift.NotThrift as error:
            self.end(error)
        except thrift.GatewayError as error:
            self._ended(None, error)
        else:
            self._ended(value, None)

    def _ended(self, value: Any, error: Exception | None) -> None:
        if self._transport.get_write_buffer_size():
            # The gateway would read the unsent rest of this request as the beginning of the next one.
            self.end(LineCut("the gateway answered before it had the whole request"))
            return
        settle, self._settle = self._settle, None
        self._pieces, self._arrived, self._needed = [], 0, 0
        self.last_used = self._loop.time()
        assert settle is not None
        settle(value, error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._check_deadline)

    def _check_deadline(self) -> None:
        """End the line if the answer is overdue. A timer for each request would cost as much as its answer."""
        self._timer = None
        if self._settle is None:
            return
        if self._loop.time() < self._due:
            self._set_timer()
        else:
            self.end(TimeoutError("the gateway did not answer in time"))

    def end(self, error: Exception | None = None) -> None:
        """End the line. A request in flight fails with ``error``."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        self._left(self)
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(None, error or LineCut("this node ended the connection"))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc or LineCut("the gateway ended the connection"))
        if not self.closed.done():
            self.closed.set_result(None)

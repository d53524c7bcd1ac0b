"""One connection of a Tephra client: frames in, answers out, in order.

::

    socket ──bytes──▶ kept, counted ──whole frame──▶ read in steps ──▶ service ──answer──▶ socket
                      bound, deadline                 one at a time

The connection checks a frame's length before it keeps the frame. It serves one call at a time. Meanwhile it keeps at
most about BEHIND_BYTES_MAX of the bytes behind the call, and then stops reading the socket. A frame must arrive whole
within a time limit. A connection without a begun frame may stay open for ever, since Tephra's client keeps a pool of
connections.

A frame that is not a call ends the connection. A call with malformed arguments gets a protocol error, as the last
answer of its connection. Each of these is logged, up to a number of lines per second (http/budget.py).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from broker import logs
from broker.errors import BadRequest, BrokerError, Overloaded
from broker.http.budget import Account, BudgetKind, Cut, Usage
from broker.long_work import heavy
from broker.principal import Remote
from broker.transactions import tephra_frames as frames
from broker.transactions.tephra_callers import TephraCaller
from broker.transactions.tephra_service import TephraAnswer
from broker.wire import Take
from broker.wire.thriftskip import Segments

if TYPE_CHECKING:
    from broker.transactions.tephra_server import TephraServer

AT_ONCE_BYTES_MAX: Final = 8 * 1024
"""A frame up to this length is read at once. That takes at most 5 ms."""
BEHIND_BYTES_MAX: Final = 64 * 1024
"""How many bytes of further calls are kept during a call before the socket is not read any more."""
WRITE_BUFFER_BYTES: Final = 64 * 1024
UNKNOWN_METHOD: Final = "unknown_method"

log = logs.get_logger()
monotonic: Callable[[], float] = time.perf_counter
"""Measures how long answers take, for metrics only. No decision depends on it."""


class TephraConnection(asyncio.BufferedProtocol):
    """One connection. The loop and its server use it."""

    def __init__(self, server: TephraServer) -> None:
        """Make a connection of this server."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._account: Account
        self._usage: Usage
        guard = server.guard
        self._caller = None if guard is None or guard.is_open else TephraCaller(guard, self._remote)
        self._incoming = frames.Incoming()
        self._behind: list[bytes] = []
        """The bytes behind the current call."""
        self._behind_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._is_reading = False
        """True while the task still reads the call from its frame, or waits to read it."""
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        self._ends = False
        self._sent_all = False
        """True if the client has shut down its sending side."""
        self.idle_since_s = 0.0
        self._last_commit: int | None = None
        """The transaction that the last answer committed, until a further byte of the client shows that it arrived."""

    @property
    def caller(self) -> str:
        """The name of the client's address in the budgets."""
        return self._account.caller

    @property
    def in_use(self) -> bool:
        """True if a call is being served, or has begun to arrive."""
        return self._task is not None or self._incoming.has_begun or bool(self._behind)

    # Called by the loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._account = self._server.budgets.account(str(peer[0]) if peer else "", self._cut)
        self._usage = Usage(self._account)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            # Detect clients that vanished without closing the connection.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.idle_since_s = self._server.loop.time()
        if not self._server.admit(self):
            self.refuse(
                Overloaded(
                    "this node takes no more connections: it stops, or has reached its limit"
                )
            )

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.read_buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        buffer = self._server.read_buffer
        self.data_received(bytes(memoryview(buffer)[:nbytes]))
        if nbytes == len(buffer) and not self._is_paused and self._transport is not None:
            # uvloop reads a socket that has more up to 32 times before it looks at the others.
            self._transport.pause_reading()
            self._server.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        # No byte has come since the pause, so no other pause has begun.
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        if self._ends:
            return
        self._last_commit = None
        try:
            self._usage.take(BudgetKind.BODY_BYTES, len(data))
        except (BrokerError, Cut) as error:
            self.refuse(error)
            return
        if self._task is None:
            self._feed(data)
            return
        self._behind.append(data)
        self._behind_bytes += len(data)
        if self._behind_bytes > BEHIND_BYTES_MAX and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()

    @override
    def eof_received(self) -> bool:
        """Handle the end of the client's data. Return True if the client still gets answers."""
        self._sent_all = True
        return self._task is not None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ends = True
        self._stop_timer()
        self._incoming = frames.Incoming()
        self._behind.clear()
        if self._is_reading and self._task is not None:
            # The usage no longer counts the frame, and no client waits for the answer.
            self._task.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._last_commit is not None:
            self._server.service.commits.put_in_doubt(self._last_commit)
        self._usage.close()
        self._account.close()
        self._server.left(self)

    @override
    def pause_writing(self) -> None:
        self._writable = self._server.loop.create_future()

    @override
    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # Frames.

    def _feed(self, data: bytes) -> None:
        """Take bytes that have arrived. Start the next call if its frame is whole."""
        if self._caller is not None:
            data = self._credentials(self._caller, data)
            if not data:
                return
        try:
            frame, behind = self._incoming.feed(data)
        except frames.NoCall as error:
            self.refuse(error)
            return
        if frame is None:
            if self._timer is None:
                self._timer = self._server.loop.call_later(self._server.frame_s, self._too_slow)
            return
        self._stop_timer()
        if behind:
            self._behind.append(behind)
            self._behind_bytes += len(behind)
        self._task = self._server.loop.create_task(self._answer(frame))

    def _credentials(self, caller: TephraCaller, data: bytes) -> bytes:
        """Give bytes to SASL. Return those that belong to calls."""
        size = len(data)
        try:
            answer, data, ends = caller.take(data)
        except frames.NoCall as error:
            self.refuse(error)
            return b""
        self._usage.give(BudgetKind.BODY_BYTES, size - len(data))
        if self._transport is not None:
            self._transport.write(answer)
        if ends:
            self.close()
        return data

    def _remote(self) -> Remote:
        certificate = self._transport and self._transport.get_extra_info("peercert")
        return Remote(self._client(), certificate or None)

    async def _refusal(self, call: frames.TephraCall) -> TephraAnswer | None:
        """Return the answer to a call that its caller may not make."""
        if self._caller is None:
            return None
        try:
            await self._caller.check(call.method)
        except BrokerError as error:
            return self._server.service.failed(call, error)
        return None

    async def _answer(self, segments: list[bytearray]) -> None:
        """Answer one call, then start the next one."""
        size = frames.LENGTH_BYTES + sum(map(len, segments))
        self._is_reading = True
        try:
            async with self._server.turns:
                began = monotonic()
                async with self._server.reading if len(segments) > 1 else nullcontext():
                    call = await self._read(segments)
                self._is_reading = False
                segments.clear()
                self._usage.give(BudgetKind.BODY_BYTES, size)
                answer = call
                if isinstance(call, frames.TephraCall):
                    answer = await self._refusal(call) or await self._server.service.answer(
                        call, self._client()
                    )
                    code, kind = answer.code, f"thrift_{call.method}"
                    self._server.metrics.answered(kind, code, monotonic() - began)
            if isinstance(answer, TephraAnswer):
                await self._send(answer)
        finally:
            self._is_reading = False
            self._usage.give(BudgetKind.ITEMS)
            self._task = None
            self.idle_since_s = self._server.loop.time()
            self._next()

    def _next(self) -> None:
        if self._transport is None:
            return
        if self._behind and not self._ends:
            behind = b"".join(self._behind)
            self._behind.clear()
            self._behind_bytes = 0
            self._feed(behind)
        if self._is_paused and self._behind_bytes <= BEHIND_BYTES_MAX and not self._ends:
            self._is_paused = False
            self._transport.resume_reading()
        if (self._sent_all and self._task is None) or (self._server.draining and not self.in_use):
            self.close()
        self._server.wake_close()

    async def _read(self, segments: list[bytearray]) -> frames.TephraCall | TephraAnswer | None:
        """Return the call in a frame, or the answer to a bad call. None if no answer is possible."""
        service, size = self._server.service, sum(map(len, segments))
        try:
            head = frames.read_head(segments[0])
        except frames.NoCall as error:
            self.refuse(error)
            return None

        def read(take: Take) -> frames.TephraCall:
            frame = segments[0] if len(segments) == 1 else Segments(segments)
            return frames.read_call(service.idl, frame, head, most=service.most, take=take)

        try:
            is_small = size <= AT_ONCE_BYTES_MAX
            return read(self._take) if is_small else await heavy(self.caller, read, self._take)
        except frames.NoMethod as error:
            self._server.metrics.answered("thrift", UNKNOWN_METHOD, 0.0)
            failed = frames.encode_failed(error.head, frames.UNKNOWN_METHOD, str(error))
            return TephraAnswer(failed, UNKNOWN_METHOD)
        except BadRequest as error:
            self._log_refusal(error)
            self._ends = True
            text = f"The arguments can't be read: {error.message}"
            return TephraAnswer(frames.encode_failed(head, frames.PROTOCOL_ERROR, text), error.code)
        except BrokerError as error:
            return service.failed(head, error)
        except Cut:
            return None

    def _take(self, count: int) -> None:
        if self._transport is None:
            raise Cut("The client has gone, so the usage counts nothing any more.")
        self._usage.take(BudgetKind.ITEMS, count)

    async def _send(self, answer: TephraAnswer) -> None:
        """Send an answer, and wait until the client has read most of it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            if answer.committed is not None:
                self._server.service.commits.put_in_doubt(answer.committed)
            return
        self._last_commit = answer.committed
        transport.write(answer.frame)
        if self._ends:
            transport.close()
        writable = self._writable
        if writable is not None:
            done, _ = await asyncio.wait((writable,), timeout=self._server.reply_stall_s)
            if not done:
                self.abort("its client does not read an answer")

    # The end.

    def refuse(self, error: Exception) -> None:
        """End the connection: its bytes can't be answered."""
        self._log_refusal(error)
        self.close()

    def _log_refusal(self, error: Exception) -> None:
        self._server.metrics.events.add("thrift_refused")
        if self._account.may_log():
            log.warning("thrift connection refused", reason=str(error), client=self._client())

    def _client(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        self._ends = True
        self._stop_timer()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Cut the connection."""
        if self._account.may_log():
            log.warning("thrift connection cut", reason=reason, client=self._client())
        self._ends = True
        if self._transport is not None:
            self._transport.abort()

    def cancel(self) -> None:
        """Cancel the current call, because the node's time to stop is over. A commit goes on."""
        if self._task is not None:
            self._task.cancel()
        self.close()

    def _cut(self, kind: BudgetKind) -> None:
        self.abort(f"it held the most of {kind}")

    def _too_slow(self) -> None:
        self._timer = None
        self.refuse(BadRequest("a frame did not arrive whole in time"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""One connection of Tephra's clients: frames in, answers out, in order.

::

    socket ──bytes──▶ held, counted ──whole frame──▶ read in steps ──▶ service ──answer──▶ socket
                      bound, deadline                 one at a time

A frame's length is looked at before the frame is held. One call of a connection is under way at a time; while it is, at
most HELD_BYTES_MAX of what comes behind it are held, and then the socket is not read. A frame must be whole within a
time; a connection on which nothing is begun may stay for ever, since Tephra's client keeps a pool of them. What is no
call ends the connection; what is malformed is answered with a protocol error, as its last answer. Either is a line of
the log, as long as not too many come (http/budget.py).
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
from broker.http.budget import Account, BudgetKind, Cut, Hold
from broker.slices import in_slices
from broker.transactions import tephra_frames as frames
from broker.transactions.tephra_service import TephraAnswer

if TYPE_CHECKING:
    from broker.transactions.tephra_server import TephraServer

HELD_BYTES_MAX: Final = 64 * 1024
"""What of further calls is held while one is under way."""
WRITE_BUFFER_BYTES: Final = 64 * 1024
UNKNOWN_METHOD: Final = "unknown_method"

log = logs.get_logger()
monotonic: Callable[[], float] = time.perf_counter
"""Measures how long answers take; nothing is decided by it."""


class TephraConnection(asyncio.Protocol):
    """One connection. Used by the loop, and by the server that it belongs to."""

    def __init__(self, server: TephraServer) -> None:
        """Belong to a server."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._account: Account
        self._hold: Hold
        self._incoming = frames.Incoming()
        self._behind: list[bytes] = []
        """What came behind the call under way."""
        self._behind_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._is_reading = False
        """Whether the task has not come to the call yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        self._ends = False
        self._sent_all = False
        """Whether the client has shut its side down."""
        self.idle_since_s = 0.0
        self._last_commit: int | None = None
        """What the last answer committed; nothing sent since then shows that it arrived."""

    @property
    def in_use(self) -> bool:
        """Whether a call is under way, or has begun to arrive."""
        return self._task is not None or self._incoming.has_begun or bool(self._behind)

    # What the loop calls.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._account = self._server.budgets.account(str(peer[0]) if peer else "", self._cut)
        self._hold = Hold(self._account)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            # So that the connections of clients that have gone without a word do not stay.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.idle_since_s = self._server.loop.time()
        if not self._server.admit(self):
            self.refuse(Overloaded("there are as many connections as there may be"))

    @override
    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        self._last_commit = None
        try:
            self._hold.take(BudgetKind.BODY_BYTES, len(data))
        except (BrokerError, Cut) as error:
            self.refuse(error)
            return
        if self._task is None:
            self._feed(data)
            return
        self._behind.append(data)
        self._behind_bytes += len(data)
        if self._behind_bytes > HELD_BYTES_MAX and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()

    @override
    def eof_received(self) -> bool:
        """Be told that the client sends no more; true: what it sent is answered."""
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
            # What it holds is not counted any more, and no client waits for it.
            self._task.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._last_commit is not None:
            self._server.service.commits.not_heard(self._last_commit)
        self._hold.close()
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
        """Take what has come; begin with the next call if it is whole."""
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

    async def _answer(self, segments: list[bytearray]) -> None:
        """Answer one call, and go on with what came behind it."""
        size = frames.LENGTH_BYTES + sum(map(len, segments))
        self._is_reading = True
        try:
            async with self._server.turns:
                began = monotonic()
                async with self._server.reading if len(segments) > 1 else nullcontext():
                    call = await self._read(segments)
                self._is_reading = False
                segments.clear()
                self._hold.give(BudgetKind.BODY_BYTES, size)
                answer = call
                if isinstance(call, frames.TephraCall):
                    answer = await self._server.service.answer(call)
                    code, kind = answer.code, f"thrift_{call.method}"
                    self._server.metrics.answered(kind, code, monotonic() - began)
            if isinstance(answer, TephraAnswer):
                await self._send(answer)
        finally:
            self._is_reading = False
            self._hold.give(BudgetKind.ITEMS)
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
        if self._is_paused and self._behind_bytes <= HELD_BYTES_MAX and not self._ends:
            self._is_paused = False
            self._transport.resume_reading()
        if (self._sent_all and self._task is None) or (self._server.draining and not self.in_use):
            self.close()
        self._server.look()

    async def _read(self, segments: list[bytearray]) -> frames.TephraCall | TephraAnswer | None:
        """Return the call that a frame is; or the answer if it is none, None if there can be none."""
        frame, service = await in_slices(frames.joined(segments)), self._server.service
        try:
            head = frames.read_head(frame)
        except frames.NoCall as error:
            self.refuse(error)
            return None
        try:
            return await in_slices(service.reading(head, frame, self._take))
        except frames.NoMethod as error:
            self._server.metrics.answered("thrift", UNKNOWN_METHOD, 0.0)
            failed = frames.encode_failed(error.head, frames.UNKNOWN_METHOD, str(error))
            return TephraAnswer(failed, UNKNOWN_METHOD)
        except BadRequest as error:
            self._refused(error)
            self._ends = True
            text = f"The arguments can't be read: {error.message}"
            return TephraAnswer(frames.encode_failed(head, frames.PROTOCOL_ERROR, text), error.code)
        except BrokerError as error:
            return service.failed(head, error)
        except Cut:
            return None

    def _take(self, count: int) -> None:
        self._hold.take(BudgetKind.ITEMS, count)

    async def _send(self, answer: TephraAnswer) -> None:
        """Send an answer, and wait until the client takes it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            if answer.committed is not None:
                self._server.service.commits.not_heard(answer.committed)
            return
        self._last_commit = answer.committed
        transport.write(answer.frame)
        if self._ends:
            transport.close()
        writable = self._writable
        if writable is not None:
            done, _ = await asyncio.wait((writable,), timeout=self._server.reply_stall_s)
            if not done:
                self.abort("its client does not take an answer")

    # Ends.

    def refuse(self, error: Exception) -> None:
        """End the connection, for what it sent can't be answered."""
        self._refused(error)
        self.close()

    def _refused(self, error: Exception) -> None:
        self._server.metrics.happened("thrift_refused")
        if self._account.may_log():
            log.warning("thrift connection refused", reason=str(error), client=self._client())

    def _client(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def close(self) -> None:
        """End the connection after what was written."""
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
        """Give up the call under way: this node has no time left. A commit goes on."""
        if self._task is not None:
            self._task.cancel()
        self.close()

    def _cut(self, kind: BudgetKind) -> None:
        self.abort(f"it held the most {kind}")

    def _too_slow(self) -> None:
        self._timer = None
        self.refuse(BadRequest("a frame was not whole in time"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

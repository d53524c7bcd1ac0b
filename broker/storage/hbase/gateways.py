"""The gateways of one HBase: the choice for each call, a limit of calls in flight, and the outcome of errors.

The gateways are equal: each can make any call. A call goes to the good gateway with the fewest calls in flight. It
avoids a gateway that has just answered with an exception, because another may reach HBase better::

             can't connect, connection cut, silent for too long, answer is not Thrift
      good ────────────────────────────────────────────────────▶ suspect
        ▲                                                           │ a task probes it, with
        └──────────────────── answers a probe ◀─────────────────────┘ pauses that double

The probe is a call that a gateway answers without HBase. Each new connection is probed before it carries a call. So
a frozen gateway, or a proxy before an absent one, gets no call, whose outcome would be unknown. If a gateway dies,
only the calls in flight there fail. If no gateway is good, a call waits a little for one. Then it is refused with
nothing sent.

==========================================  ==========================================================
no turn, no connection                      NotWritten
a declared exception (``TIOError``)         WriteUnknown: the gateway's own client may have repeated a call
                                            that it thought lost; some rows of a multi-put may be written.
                                            ``canRetry`` does not help: it is true even for a table that
                                            does not exist. The connection is kept
an undeclared exception                     WriteUnknown; the connection is closed
broken connection, time-out, not Thrift     WriteUnknown: the call may be done, or be done later; the
                                            connection is closed and the gateway is suspect
==========================================  ==========================================================

A gateway closes a connection after a minute without calls. This module does not use one again after half of that.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker import retries
from broker.http.tls_layer import TlsLayer
from broker.shield import bare
from broker.storage.call_health import CANCELLED, CallOutcome
from broker.storage.hbase import requests, thrift
from broker.storage.hbase.line import Line
from broker.storage.table import NotWritten, TableError, WriteUnknown
from broker.turns import CallSubject, Turn, Turns
from broker.user_code import Ended

TlsSource = Callable[[], ssl.SSLContext | None]

CALL_S = 10.0
"""Longer than the gateway's own limit, so that most late answers still come."""
CONNECT_S = 2.0
IDLE_S = 30.0
CONNECTIONS_MAX = 16
CLOSE_S = 1.0
"""How long a close waits for calls in flight."""
PAUSE_S_FIRST = 0.05
PAUSE_S_MAX = 2.0
DOUBTED_S = 0.5
"""For how long a gateway is avoided after an answer with an exception."""
LATE_SHARES = 3
"""How many late calls are allowed for each connection."""
ADMIN = CallSubject("")
"""The subject of calls that concern no region."""

Tell = Callable[[BaseException | None], None]


class GatewayAddress(NamedTuple):
    """The address of a gateway."""

    host: str
    port: int


class GatewayFailed(WriteUnknown):
    """A call failed after it was sent. For ``kind`` see CallOutcome."""

    def __init__(self, kind: str, message: str) -> None:
        """Keep the kind and the message."""
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True, eq=False)
class Gateway:
    """One gateway and its state. ``ready`` has its lines without a call in flight."""

    address: GatewayAddress
    under_way: int = 0
    suspect: bool = False
    doubted_until: float = 0.0
    ready: deque[Line] = field(default_factory=deque)


class Gateways:
    """Calls to the gateways of one HBase. Made and used in one event loop."""

    def __init__(  # noqa: PLR0913 - All but one by name.
        self,
        addresses: Sequence[GatewayAddress],
        *,
        connections_max: int = CONNECTIONS_MAX,
        call_s: float = CALL_S,
        connect_s: float = CONNECT_S,
        idle_s: float = IDLE_S,
        observe: Callable[[CallOutcome], None] | None = None,
        tls: TlsSource = lambda: None,
    ) -> None:
        """Keep ``addresses``; connections are made when calls need them.

        ``connections_max`` limits the calls in flight; late calls have a limit of their own (turns.py). ``call_s``
        limits each wait of one call: for its turn, and for its answer. ``connect_s`` limits the wait for a
        connection. ``observe`` is called with each call as it ends. ``tls`` returns the context for new connections;
        None: they are without TLS.
        """
        assert addresses, "at least one gateway"
        self._gateways = [Gateway(address) for address in addresses]
        self._call_s, self._connect_s, self._idle_s = call_s, connect_s, idle_s
        self._observe = observe
        self._tls = tls
        self._turns = Turns(connections_max, LATE_SHARES * connections_max)
        self._rotation = itertools.count()
        self._lines: set[Line] = set()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._restoring: set[asyncio.Task[None]] = set()
        self._some_good = asyncio.Event()
        self._some_good.set()
        self._why: str | None = None
        """The failure of the gateway that became suspect last."""
        self._is_closed = False

    async def ask(self, name: str, request: bytes, place: CallSubject = ADMIN) -> Any:
        """Make one call and return its answer (thrift.answer). ``observe`` gets it under ``name``.

        ``place`` is the subject of the call: calls with the same subject share turns. If the caller is cancelled
        before the answer, the call may be sent nevertheless.

        Raises:
            NotWritten, WriteUnknown: see the module's table.
        """
        tell = functools.partial(self._observe_call, name, asyncio.get_running_loop().time())
        try:
            turn = await self._take_turn(place)
            try:
                gateway, line = await self._line()
            except BaseException:
                self._turns.give_back(turn)
                raise
        except BaseException as error:
            tell(error)
            raise
        return await self._sent(gateway, line, turn, request, tell)

    async def _take_turn(self, place: CallSubject) -> Turn:
        try:
            return await self._turns.take(place, self._call_s)
        except TimeoutError as error:
            raise NotWritten(
                "all connections to HBase's gateways are busy, or all that this region may use"
            ) from bare(error)

    def _sent(
        self, gateway: Gateway, line: Line, turn: Turn, request: bytes, tell: Tell
    ) -> asyncio.Future[Any]:
        """Send a call. When it is answered, give back the turn and the line."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        self._under_way.add(answered)
        gateway.under_way += 1

        def settle(answer: Any, error: Exception | None) -> None:
            # This also runs if the caller was cancelled: the line is free only now.
            gateway.under_way -= 1
            self._turns.give_back(turn, answered=error is None)
            self._under_way.discard(answered)
            failed = None if error is None else self._failed(gateway, line, error)
            if failed is None:
                gateway.doubted_until = 0.0
                gateway.ready.append(line)
            if not answered.done():
                if failed is None:
                    answered.set_result(answer)
                else:
                    answered.set_exception(failed)
            # ``tell`` costs time, so it runs after the caller has got its answer.
            loop.call_soon(tell, failed)

        line.ask(request, self._call_s, settle)
        return answered

    def _failed(self, gateway: Gateway, line: Line, error: Exception) -> GatewayFailed:
        """Keep or close a line after a failed call, by the error. Return the error for the caller."""
        failed = GatewayFailed("told", str(error))
        if not isinstance(error, thrift.GatewayError):
            failed = GatewayFailed(
                "silent" if isinstance(error, TimeoutError) else "cut",
                f"{type(error).__name__}: {error}",
            )
            self._suspect(gateway, failed)
        elif error.by_hbase:
            gateway.doubted_until = asyncio.get_running_loop().time() + DOUBTED_S
            gateway.ready.append(line)
        else:
            line.end()
        failed.__cause__ = error
        return failed

    def _observe_call(self, name: str, begun: float, error: BaseException | None) -> None:
        if self._observe is None:
            return
        seconds = asyncio.get_running_loop().time() - begun
        if error is None:
            self._observe(CallOutcome(name, seconds))
        elif isinstance(error, TableError):
            self._observe(CallOutcome(name, seconds, getattr(error, "kind", "refused"), str(error)))
        else:
            self._observe(CallOutcome(name, seconds, CANCELLED))

    # Lines.

    async def _line(self) -> tuple[Gateway, Line]:
        """Return a line to the best gateway: a ready one, or a new connection. Raises NotWritten."""
        deadline = asyncio.get_running_loop().time() + self._connect_s
        while True:
            if not self._some_good.is_set():
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._some_good.wait()
                except TimeoutError as error:
                    raise NotWritten(f"no gateway of HBase answers: {self._why}") from bare(error)
            if self._is_closed:
                raise NotWritten("the connections to HBase are closed")
            gateway = self._best()
            line = self._ready(gateway)
            if line is not None:
                return gateway, line
            gateway.under_way += 1
            try:
                return gateway, await self._connect(gateway)
            except (OSError, thrift.GatewayError) as error:
                self._suspect(gateway, error)
            finally:
                gateway.under_way -= 1

    def _best(self) -> Gateway:
        """Return the gateway for the next call. At least one gateway must be good."""
        if len(self._gateways) == 1:
            return self._gateways[0]
        now = asyncio.get_running_loop().time()
        good = [gateway for gateway in self._gateways if not gateway.suspect]
        first = next(self._rotation) % len(good)  # Equally good gateways take turns.
        return min(
            good[first:] + good[:first], key=lambda each: (now < each.doubted_until, each.under_way)
        )

    def _ready(self, gateway: Gateway) -> Line | None:
        """Return the most recently used line that is still usable; None: there is none."""
        now = asyncio.get_running_loop().time()
        while gateway.ready:
            line = gateway.ready.pop()
            if now - line.last_used < self._idle_s and line.is_silent():
                return line
            line.end()
        return None

    async def _connect(self, gateway: Gateway) -> Line:
        """Open a line and probe it. Raises OSError, GatewayError."""
        loop = asyncio.get_running_loop()

        def left(line: Line) -> None:
            self._lines.discard(line)
            if line in gateway.ready:
                gateway.ready.remove(line)

        async with asyncio.timeout(self._connect_s):
            line, context = Line(left), self._tls()
            layer = None
            if context is not None:
                layer = TlsLayer(line, context, server_hostname=gateway.address[0])
            await loop.create_connection(lambda: layer or line, *gateway.address)
            self._lines.add(line)
            try:
                if layer is not None:
                    await layer.opened
                answer = (await self._probed(line)).result()
            except BaseException:
                line.end()
                raise
        if answer != requests.THRIFT_2 or self._is_closed:
            line.end()
            raise OSError("it is not a Thrift 2 gateway")
        return line

    async def _probed(self, line: Line) -> Ended[Any]:
        """Return the answer of a new line to the question of its kind; no frame of the caller keeps an error."""
        answered: asyncio.Future[Ended[Any]] = asyncio.get_running_loop().create_future()

        def settle(answer: Any, error: Exception | None) -> None:
            if not answered.done():
                answered.set_result(Ended(answer, error))

        line.ask(requests.SERVER_TYPE, self._connect_s, settle)
        return await answered

    def _suspect(self, gateway: Gateway, why: Exception) -> None:
        """Mark a gateway as suspect, and start a task that probes it until it answers."""
        if gateway.suspect or self._is_closed:
            return
        host, port = gateway.address
        self._why = f"{host}:{port}: {str(why) or type(why).__name__}"
        gateway.suspect = True
        while gateway.ready:
            gateway.ready.pop().end()
        if all(each.suspect for each in self._gateways):
            self._some_good.clear()
        asking = asyncio.create_task(self._restore(gateway))
        self._restoring.add(asking)
        asking.add_done_callback(self._restoring.discard)

    async def _restore(self, gateway: Gateway) -> None:
        """Probe a suspect gateway until it answers."""

        def pause_s(error: Exception, attempts: int) -> float | None:
            if not isinstance(error, OSError | thrift.GatewayError):
                return None
            return retries.doubled_s(attempts, PAUSE_S_FIRST, PAUSE_S_MAX)

        line = await retries.repeat(lambda: self._connect(gateway), pause_s, asyncio.sleep)
        gateway.ready.append(line)
        gateway.suspect = False
        self._some_good.set()

    async def close(self) -> None:
        """Wait a little for the calls in flight, end them, and close the connections."""
        self._is_closed = True
        self._some_good.set()
        for asking in self._restoring:
            asking.cancel()
        self._turns.close()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_S)
        ends = [line.closed for line in self._lines]
        for line in list(self._lines):
            line.end()
        await asyncio.gather(*ends, *self._restoring, return_exceptions=True)

"""The gateways of one HBase: which is asked next, how many calls are under way, what an error says.

The gateways are equal: any of them can make any call. Of the good ones that is asked which has the fewest
calls under way, rather not one that has just told of an exception: perhaps another reaches HBase better::

             could not connect, cut, silent for too long, said what is no Thrift
      good ────────────────────────────────────────────────────▶ suspect
        ▲                                                           │ asked by a task of its own, with
        └──────────────────── answers a question ◀──────────────────┘ pauses that double

The question is what a gateway knows by itself, whatever state HBase is in, and each new connection is asked it
before it carries a call: so a gateway that is frozen, or a proxy before one that is away, takes no call whose
outcome would then be unknown. A dead gateway costs the calls that were under way there. If none
is good, a call waits a little for one and is then refused: nothing was sent.

==========================================  ==========================================================
no turn, no connection                      NotSent
a declared exception (``TIOError``)          NoAnswer: the gateway's own client may have repeated what it
                                            first thought lost; of a multi-put some rows may be written.
                                            ``canRetry`` is no help: it is true also for a table that does
                                            not exist. The connection is kept
an undeclared one                           NoAnswer; the connection is closed
broken connection, time-out, no Thrift      NoAnswer: it may be done, or be done later; the connection is
                                            closed and the gateway suspect
==========================================  ==========================================================

A connection that was idle for half of the gateway's minute is not used again.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from broker.storage.call_health import CANCELLED, CallOutcome
from broker.storage.hbase import requests, thrift
from broker.storage.hbase.line import Line
from broker.storage.table import NotWritten, TableError, WriteUnknown
from broker.turns import CallSubject, Turn, Turns

CALL_S = 10.0
"""Longer than the gateway's own bound, so that most late answers still come."""
CONNECT_S = 2.0
IDLE_S = 30.0
CONNECTIONS_MAX = 16
CLOSE_S = 1.0
"""How long calls under way may still take at the close."""
PAUSE_S_FIRST = 0.05
PAUSE_S_MAX = 2.0
DOUBTED_S = 0.5
"""How long others are preferred to a gateway that answers with an exception."""
LATE_SHARES = 3
"""How many late calls there may be for each connection."""
ADMIN = CallSubject("")
"""Of calls that are about no region."""

Tell = Callable[[BaseException | None], None]


class GatewayAddress(NamedTuple):
    """Where a gateway listens."""

    host: str
    port: int


class GatewayFailed(WriteUnknown):
    """A call failed after it was sent. ``kind``: see Ended."""

    def __init__(self, kind: str, message: str) -> None:
        """Keep both."""
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True, eq=False)
class Gateway:
    """One gateway, and how it has been answering. ``ready`` are its lines that carry no call."""

    address: GatewayAddress
    under_way: int = 0
    suspect: bool = False
    doubted_until: float = 0.0
    ready: deque[Line] = field(default_factory=deque)


class Gateways:
    """Calls to the gateways of one HBase. Made and used in one event loop."""

    def __init__(
        self,
        addresses: Sequence[GatewayAddress],
        *,
        connections_max: int = CONNECTIONS_MAX,
        call_s: float = CALL_S,
        connect_s: float = CONNECT_S,
        idle_s: float = IDLE_S,
        observe: Callable[[CallOutcome], None] | None = None,
    ) -> None:
        """Connect to ``addresses`` when there is something to call.

        ``connections_max`` bounds the calls under way, but for late ones (turns.py). ``call_s`` bounds each wait of one call: for its turn, and for the answer; ``connect_s`` the wait
        for a connection. ``observe`` is told of each call as it ends.
        """
        assert addresses, "at least one gateway"
        self._gateways = [Gateway(address) for address in addresses]
        self._call_s, self._connect_s, self._idle_s = call_s, connect_s, idle_s
        self._observe = observe
        self._turns = Turns(connections_max, LATE_SHARES * connections_max)
        self._turn = itertools.count()
        self._lines: set[Line] = set()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._restoring: set[asyncio.Task[None]] = set()
        self._some_good = asyncio.Event()
        self._some_good.set()
        self._why: str | None = None
        """The failure of the gateway that became suspect last."""
        self._is_closed = False

    async def ask(self, name: str, request: bytes, place: CallSubject = ADMIN) -> Any:
        """Make one call, called ``name`` where it is told of, and return its answer (thrift.answer).

        ``place`` is what it is about: it shares its turns with other calls about that. A caller that goes
        away before the answer has sent the call all the same.

        Raises:
            NotSent, NoAnswer: see the table above.
        """
        tell = functools.partial(self._tell, name, asyncio.get_running_loop().time())
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
                "all connections to HBase's gateways are busy, or all that its region may have"
            ) from error

    def _sent(
        self, gateway: Gateway, line: Line, turn: Turn, request: bytes, tell: Tell
    ) -> asyncio.Future[Any]:
        """Send a call; the turn and the line are given back once it is answered."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        self._under_way.add(answered)
        gateway.under_way += 1

        def settle(told: Any, error: Exception | None) -> None:
            # Also when the caller was cancelled: the line is free now, not before.
            gateway.under_way -= 1
            self._turns.give_back(turn, answered=error is None)
            self._under_way.discard(answered)
            failed = None if error is None else self._failed(gateway, line, error)
            if failed is None:
                gateway.doubted_until = 0.0
                gateway.ready.append(line)
            if not answered.done():
                if failed is None:
                    answered.set_result(told)
                else:
                    answered.set_exception(failed)
            # After the caller has gone on: what this does costs time.
            loop.call_soon(tell, failed)

        line.ask(request, self._call_s, settle)
        return answered

    def _failed(self, gateway: Gateway, line: Line, error: Exception) -> GatewayFailed:
        """Keep a line or not, by what came of its call; return what the caller gets."""
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

    def _tell(self, name: str, begun: float, error: BaseException | None) -> None:
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
        """Return a line to the gateway that looks best; at once if one is ready. Raises NotSent."""
        deadline = asyncio.get_running_loop().time() + self._connect_s
        while True:
            if not self._some_good.is_set():
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._some_good.wait()
                except TimeoutError:
                    raise NotWritten(f"no gateway of HBase answers: {self._why}") from None
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
        """Return the one to ask; one at least is good."""
        if len(self._gateways) == 1:
            return self._gateways[0]
        now = asyncio.get_running_loop().time()
        good = [gateway for gateway in self._gateways if not gateway.suspect]
        turn = next(self._turn) % len(good)  # Of equal ones each in its turn.
        return min(
            good[turn:] + good[:turn], key=lambda each: (now < each.doubted_until, each.under_way)
        )

    def _ready(self, gateway: Gateway) -> Line | None:
        """Return the line that was used last, unless it is none any more."""
        now = asyncio.get_running_loop().time()
        while gateway.ready:
            line = gateway.ready.pop()
            if now - line.last_used < self._idle_s and line.is_silent():
                return line
            line.end()
        return None

    async def _connect(self, gateway: Gateway) -> Line:
        """Open a line that a gateway answers on. Raises OSError, Told."""
        loop = asyncio.get_running_loop()

        def left(line: Line) -> None:
            self._lines.discard(line)
            if line in gateway.ready:
                gateway.ready.remove(line)

        async with asyncio.timeout(self._connect_s):
            _, line = await loop.create_connection(lambda: Line(left), *gateway.address)
            self._lines.add(line)
            answered: asyncio.Future[Any] = loop.create_future()

            def settle(told: Any, error: Exception | None) -> None:
                if not answered.done():
                    answered.set_result(error if error is not None else told)

            line.ask(requests.SERVER_TYPE, self._connect_s, settle)
            try:
                told = await answered
            except BaseException:
                line.end()
                raise
        if told != requests.THRIFT_2 or self._is_closed:
            line.end()
            raise told if isinstance(told, Exception) else OSError("it is no gateway of Thrift 2")
        return line

    def _suspect(self, gateway: Gateway, why: Exception) -> None:
        """Have a gateway asked by a task of its own until it answers."""
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
        """Ask a suspect until it answers."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((OSError, thrift.GatewayError)),
            wait=wait_exponential(multiplier=PAUSE_S_FIRST, max=PAUSE_S_MAX),
            sleep=asyncio.sleep,
        )
        line: Line = await retrying(self._connect, gateway)
        gateway.ready.append(line)
        gateway.suspect = False
        self._some_good.set()

    async def close(self) -> None:
        """Wait a little for what is under way, end it, and close the connections."""
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

"""Calls to HBase through its Thrift-2 gateways, and what an error says.

Each call takes a connection of its own (hbase_connections.py), of which there are ``connections_max``. One
who waits for one longer than a call may last was not sent. Thrift's clients block, so a call takes a thread
as well, unless its answer is small: then the loop does it (hbase_exchange.py), and a thread only connects.

==========================================  ==========================================================
no free connection, could not connect       CellsRefused: certainly not sent
``TIOError``, ``TApplicationException``      CellsError: the gateway tells of an exception; of a multi-put
                                            some rows may be written, and its own client may have
                                            repeated what it first thought lost
broken connection, time-out                 CellsError: it may be done, or be done later; the connection
                                            is out of step and closed
==========================================  ==========================================================

``canRetry`` of a TIOError is no help: it is true also for a table that does not exist.

The interface definition is package data: a gateway does not give it away, and the jar that holds it is
not where the broker runs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from thriftpy2.protocol.cybin.cybin import ProtocolError
from thriftpy2.thrift import TApplicationException, TException

from broker.storage.cells import CellsError, CellsRefused
from broker.storage.hbase_connections import Address, Connection, Connections, Timeouts
from broker.storage.hbase_exchange import IDL, decode
from broker.storage.health import CANCELLED, Ended

__all__ = ["IDL", "Address", "Ended", "Gateways"]

CALL_S = 10.0
"""Longer than the gateway's own bound, so that most late answers still come."""
CONNECT_S = 2.0
IDLE_S = 30.0
CONNECTIONS_MAX = 16
CLOSE_S = 1.0
"""How long calls may still take when nobody will make another."""

Answer = TypeVar("Answer")


class GatewayFailed(CellsError):
    """A call failed after it was sent. ``kind``: see Ended."""

    def __init__(self, kind: str, message: str) -> None:
        """Keep both."""
        super().__init__(message)
        self.kind = kind


class Turns:
    """How many calls may be under way; who comes later waits, and goes in the order of coming.

    A semaphore whose free turn can be taken without a coroutine.
    """

    def __init__(self, count: int) -> None:
        """Begin with all of them free."""
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a turn that is free and that nobody waits for; False if there is none."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a turn as soon as those who came before have theirs."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back()  # It was given in the very moment in which nobody waited any more.
            raise

    def give_back(self) -> None:
        """Give a turn to who waits longest, or let it be free."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Gateways:
    """Calls to the gateways of one HBase. Used from one event loop."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        connections_max: int = CONNECTIONS_MAX,
        call_s: float = CALL_S,
        connect_s: float = CONNECT_S,
        idle_s: float = IDLE_S,
        observe: Callable[[Ended], None] | None = None,
    ) -> None:
        """Connect to ``addresses`` when there is something to call.

        ``call_s`` bounds each wait of one call: for a connection, and for the answer. ``observe`` is
        told of each call as it ends, on the event loop.
        """
        self._connections = Connections(addresses, Timeouts(call_s, connect_s, idle_s))
        self._call_s = call_s
        self._observe = observe
        self._turns = Turns(connections_max)
        self._exchanges: set[asyncio.Future[Any]] = set()
        """Calls that are under way without a thread."""
        self._threads = ThreadPoolExecutor(connections_max, thread_name_prefix="hbase")

    async def call(self, name: str, work: Callable[[Any], Answer]) -> Answer:
        """Run ``work`` in a thread, with a client of a gateway, and return what it returns.

        Whoever is cancelled while waiting has sent the call, unless it was still in the queue.

        Raises:
            CellsRefused: it was certainly not sent.
            CellsError: it may be done, or be done later.
        """
        return await self._observed(name, self._called(work))

    def ask(self, name: str, api: str, request: bytes) -> Awaitable[Any]:
        """Send one call ``api`` whose answer is small, and return what will have its answer.

        At once if a connection stands ready, else as soon as there is one. Otherwise as ``call``.

        Raises:
            CellsRefused, CellsError: once awaited, as ``call``.
        """
        begun = time.monotonic()
        if self._turns.take():
            connection = self._connections.take_ready()
            if connection is not None:
                return self._sent(connection, name, begun, api, request)
            self._turns.give_back()
        return self._ask_later(name, begun, api, request)

    async def _ask_later(self, name: str, begun: float, api: str, request: bytes) -> Any:
        try:
            connection = await self._connection_later(begun)
        except BaseException as error:
            self._tell(name, time.monotonic() - begun, error)
            raise
        return await self._sent(connection, name, begun, api, request)

    async def _connection_later(self, begun: float) -> Connection:
        """Wait for a turn and a connection. Raises CellsRefused."""
        added = False
        while time.monotonic() - begun <= self._call_s:
            await self._take_turn()
            connection = self._connections.take_ready(anywhere=added)
            if connection is not None:
                return connection
            added = True
            await self._in_thread(self._connections.add)
        raise CellsRefused("connections to HBase's gateways end before they are used")

    def _sent(
        self, connection: Connection, name: str, begun: float, api: str, request: bytes
    ) -> asyncio.Future[Any]:
        """Send a call; the turn and the connection are given back once it is answered."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        self._exchanges.add(answered)

        def settle(how: bytes | Exception) -> None:
            # Also when the caller was cancelled: the connection is free now, not before.
            self._turns.give_back()
            self._exchanges.discard(answered)
            try:
                answer = decode(api, how)
            except Exception as raised:  # noqa: BLE001  The caller's, whatever it is.
                error = raised
                try:
                    error = self._failed(connection, raised)
                    self._tell(name, time.monotonic() - begun, error)
                finally:
                    if not answered.done():
                        answered.set_exception(error)
            else:
                self._connections.give_back(connection, doubtful=False)
                if not answered.done():
                    answered.set_result(answer)
                # After whoever waits has gone on, and who waits for that: what they do costs time.
                seconds = connection.last_used - begun
                loop.call_soon(loop.call_soon, self._tell, name, seconds, None)

        connection.in_loop().ask(request, settle, self._call_s)
        return answered

    def _tell(self, name: str, seconds: float, error: BaseException | None) -> None:
        if self._observe is None:
            return
        if error is None:
            self._observe(Ended(name, seconds))
        elif isinstance(error, CellsError):
            kind = getattr(error, "kind", "refused")
            self._observe(Ended(name, seconds, kind, str(error)))
        else:
            self._observe(Ended(name, seconds, CANCELLED))

    async def _observed(self, name: str, calling: Coroutine[Any, Any, Answer]) -> Answer:
        begun = time.monotonic()
        try:
            answer = await calling
        except BaseException as error:
            self._tell(name, time.monotonic() - begun, error)
            raise
        self._tell(name, time.monotonic() - begun, None)
        return answer

    async def _called(self, work: Callable[[Any], Answer]) -> Answer:
        await self._take_turn()
        return await self._in_thread(lambda: self._exchange(work))

    async def _in_thread(self, work: Callable[[], Answer]) -> Answer:
        """Return what ``work`` returns; whoever calls has a turn, which is given back."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer | None, error: BaseException | None) -> None:
            # Also when the caller was cancelled: the thread is free now, not before.
            self._turns.give_back()
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(answer)  # type: ignore[arg-type]  # Answer may be None.

        taken = itertools.count()

        def run() -> None:
            if next(taken):
                return  # It was given up before a thread had it.
            answer, error = None, None
            try:
                answer = work()
            except BaseException as raised:  # noqa: BLE001  The caller's, whatever it is.
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, answer, error)

        try:
            self._threads.submit(run)
        except RuntimeError as error:
            # The end, or no thread is to be had; what was put in the queue all the same is not to be done.
            if not next(taken):
                self._turns.give_back()
                raise CellsRefused(f"no thread for a call to HBase: {error}") from error
        return await answered

    async def _take_turn(self) -> None:
        if self._turns.take():
            return
        try:
            async with asyncio.timeout(self._call_s):
                await self._turns.wait()
        except TimeoutError as error:
            raise CellsRefused("all connections to HBase's gateways are busy") from error

    async def close(self) -> None:
        """Wait a little for what is under way, end it, and close the connections."""
        ending = asyncio.ensure_future(asyncio.to_thread(self._threads.shutdown))
        await asyncio.wait({ending, *self._exchanges}, timeout=CLOSE_S)
        self._connections.cut()
        await asyncio.wait({ending, *self._exchanges})
        self._connections.close()

    # In a thread of the executor.

    def _exchange(self, work: Callable[[Any], Answer]) -> Answer:
        connection = self._connections.take()
        try:
            answer = work(connection.client)
        except Exception as raised:
            raise self._failed(connection, raised) from raised
        except BaseException:
            # Nobody knows what was sent.
            self._connections.discard(connection, failed=False)
            raise
        self._connections.give_back(connection, doubtful=False)
        return answer

    # Of both.

    def _failed(self, connection: Connection, raised: Exception) -> Exception:
        """Give a connection back, or not, by what came of its call; return what the caller gets."""
        match raised:
            case IDL.TIOError():
                self._connections.give_back(connection, doubtful=True)
                # Of Java's stack trace, if it is one, the line with which it begins.
                first = (raised.message or "no message").partition("\n")[0]
                failed = GatewayFailed("told", first)
            case TApplicationException():
                self._connections.discard(connection, failed=False)
                # Its str() raises a TypeError.
                failed = GatewayFailed("told", f"TApplicationException: {raised.message}")
            case TException() | OSError() | ProtocolError():
                self._connections.discard(connection, failed=True)
                kind = "silent" if isinstance(raised, TimeoutError) else "cut"
                failed = GatewayFailed(kind, f"{type(raised).__name__}: {raised}")
            case _:
                # A bug of ours: nobody knows what was sent.
                self._connections.discard(connection, failed=False)
                return raised
        failed.__cause__ = raised
        return failed

"""Calls to HBase through its Thrift-2 gateways, and what an error says.

Each call takes a connection of its own (hbase_connections.py), of which there are ``connections_max``. One
who waits for one longer than a call may last was not sent. Thrift's clients block, so a call takes a thread
as well, unless its answer is small and a connection stands ready: then the loop does it (hbase_exchange.py).

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
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from thriftpy2.thrift import TApplicationException, TException

from broker.storage.cells import CellsError, CellsRefused
from broker.storage.hbase_connections import Address, Connection, Connections, Timeouts
from broker.storage.hbase_exchange import IDL, decode, encode
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
        self._free = asyncio.Semaphore(connections_max)
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

    async def ask(self, name: str, api: str, *arguments: object) -> Any:
        """Make one call ``api`` whose answer is small, without a thread if a connection stands ready.

        Otherwise as ``call``.

        Raises:
            CellsRefused, CellsError: as ``call``.
        """
        begun = time.monotonic()
        request = encode(api, arguments)
        try:
            await self._take_turn()
        except CellsError as error:
            self._tell(name, begun, error)
            raise
        connection = self._connections.take_ready()
        if connection is None:
            return await self._observed(
                name, self._in_thread(lambda client: getattr(client, api)(*arguments))
            )
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        self._exchanges.add(answered)

        def settle(how: bytes | Exception) -> None:
            # Also when the caller was cancelled: the connection is free now, not before.
            self._free.release()
            self._exchanges.discard(answered)
            try:
                answer = decode(api, how)
            except Exception as raised:  # noqa: BLE001  The caller's, whatever it is.
                error = self._failed(connection, raised)
                self._tell(name, begun, error)
                if not answered.done():
                    answered.set_exception(error)
            else:
                self._connections.give_back(connection, doubtful=False)
                if not answered.done():
                    answered.set_result(answer)
                # After whoever waits has gone on: its next call is what costs time.
                loop.call_soon(self._tell, name, begun, None)

        connection.in_loop().ask(request, settle, self._call_s)
        return await answered

    def _tell(self, name: str, begun: float, error: BaseException | None) -> None:
        if self._observe is None:
            return
        seconds = time.monotonic() - begun
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
            self._tell(name, begun, error)
            raise
        self._tell(name, begun, None)
        return answer

    async def _called(self, work: Callable[[Any], Answer]) -> Answer:
        await self._take_turn()
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[Any], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer | None, error: BaseException | None) -> None:
            # Also when the caller was cancelled: the thread is free now, not before.
            self._free.release()
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(answer)  # type: ignore[arg-type]  # Answer may be None.

        def run() -> None:
            answer, error = None, None
            try:
                answer = self._exchange(work)
            except BaseException as raised:  # noqa: BLE001  The caller's, whatever it is.
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, answer, error)

        self._threads.submit(run)
        return await answered

    async def _take_turn(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self._call_s):
                await self._free.acquire()
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
            case TException() | OSError():
                self._connections.discard(connection, failed=True)
                kind = "silent" if isinstance(raised, TimeoutError) else "cut"
                failed = GatewayFailed(kind, f"{type(raised).__name__}: {raised}")
            case _:
                # A bug of ours: nobody knows what was sent.
                self._connections.discard(connection, failed=False)
                return raised
        failed.__cause__ = raised
        return failed

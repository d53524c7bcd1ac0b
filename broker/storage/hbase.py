"""HBase's Thrift-2 gateways: connections, threads, and what an error says.

**A trial**: it runs against a real HBase, and docs/internals/hbase-trial.md says how that went. What the
cluster work must still do: choose among gateways by their health, metrics, transport security, and a
bound of the gateway's own on how long one call may block (its defaults are minutes).

Thrift's clients block, so each call takes a thread and a connection of its own; there are
``connections_max`` of both, and one who waits for them longer than a call may last was not sent. The
gateway closes a connection that was idle for 60 s and tells nobody: the next call would be written into
it and fail with an unknown outcome. So a connection that was idle for half of that is not used again,
nor one on which something arrived that nobody asked for, which is how the end of a stream looks.

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
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import thriftpy2
import thriftpy2.protocol
import thriftpy2.transport
from thriftpy2.thrift import TClient, TException

from broker.storage.cells import CellsError, CellsRefused

IDL = thriftpy2.load(str(Path(__file__).with_name("hbase2.thrift")), module_name="hbase2_thrift")
"""The structs and the service of the Thrift-2 gateway."""

_transport: Any = thriftpy2.transport  # Neither has types.
_protocol: Any = thriftpy2.protocol

CALL_S = 10.0
"""Longer than the gateway's own bound, so that most late answers still come."""
CONNECT_S = 2.0
IDLE_S = 30.0
CONNECTIONS_MAX = 8

Answer = TypeVar("Answer")


class Address(NamedTuple):
    """Where a gateway listens."""

    host: str
    port: int


@dataclass(slots=True)
class _Connection:
    socket: Any
    client: TClient
    last_used: float = 0.0

    def is_silent(self) -> bool:
        """Whether nothing has arrived, not even the end of the stream."""
        poll = select.poll()
        poll.register(self.socket.sock, select.POLLIN)
        return not poll.poll(0)


class Gateway:
    """Calls to the gateways of one HBase. Used from one event loop."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        connections_max: int = CONNECTIONS_MAX,
        call_s: float = CALL_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """Connect to one of ``addresses`` in turn, when there is something to call."""
        assert addresses, "at least one gateway"
        self._addresses = tuple(addresses)
        self._turn = itertools.count()
        self._call_s = call_s
        self._idle_s = idle_s
        self._free = asyncio.Semaphore(connections_max)
        self._threads = ThreadPoolExecutor(connections_max, thread_name_prefix="hbase")
        self._lock = threading.Lock()
        self._idle: deque[_Connection] = deque()

    async def call(self, work: Callable[[Any], Answer]) -> Answer:
        """Run ``work`` in a thread, with a client of the gateway, and return what it returns.

        Whoever is cancelled while waiting has sent the call, unless it was still in the queue.

        Raises:
            CellsRefused: it was certainly not sent.
            CellsError: it may be done, or be done later.
        """
        try:
            async with asyncio.timeout(self._call_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise CellsRefused("all connections to HBase's gateways are busy") from error
        loop = asyncio.get_running_loop()
        future = self._threads.submit(self._exchange, work)

        def free(_: Future[Answer]) -> None:
            # Also when the caller was cancelled: the thread is free now, not before.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._free.release)

        future.add_done_callback(free)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Wait for what is under way and close the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            self._idle.pop().socket.close()

    # In a thread of the executor.

    def _exchange(self, work: Callable[[Any], Answer]) -> Answer:
        connection = self._take()
        in_step = False
        try:
            answer = work(connection.client)
            in_step = True
        except IDL.TIOError as error:
            in_step = True
            raise CellsError(_first_line(error.message)) from error
        except (TException, OSError) as error:
            # str() of a TApplicationException raises a TypeError.
            message = getattr(error, "message", None) or repr(error)
            raise CellsError(f"{type(error).__name__}: {message}") from error
        finally:
            if in_step:
                self._give_back(connection)
            else:
                connection.socket.close()
        return answer

    def _take(self) -> _Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connected()
            idle_s = time.monotonic() - connection.last_used
            if idle_s < self._idle_s and connection.is_silent():
                return connection
            connection.socket.close()

    def _give_back(self, connection: _Connection) -> None:
        connection.last_used = time.monotonic()
        with self._lock:
            self._idle.append(connection)

    def _connected(self) -> _Connection:
        for _ in self._addresses:
            address = self._addresses[next(self._turn) % len(self._addresses)]
            socket = _transport.TSocket(
                address.host,
                address.port,
                socket_timeout=int(self._call_s * 1000),
                connect_timeout=int(CONNECT_S * 1000),
            )
            stream = _transport.TBufferedTransportFactory().get_transport(socket)
            protocol = _protocol.TBinaryProtocolFactory().get_protocol(stream)
            try:
                stream.open()
            except (TException, OSError):
                continue
            return _Connection(socket, TClient(IDL.THBaseService, protocol))
        raise CellsRefused("no gateway of HBase takes connections")


def _first_line(message: str | None) -> str:
    """Return what a Java stack trace begins with."""
    return (message or "no message").partition("\n")[0]

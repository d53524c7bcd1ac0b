"""Connections to HBase's Thrift-2 gateways, and which gateway is asked next.

The gateways of one HBase are equal: any of them can make any call. Of the good ones that is asked which has
the fewest calls under way, rather not one that has just told of an exception: perhaps another reaches
HBase better::

             could not connect, cut (also before anything was asked), silent for too long
      good ─────────────────────────────────────────────▶ suspect
        ▲                                                    │ asked by a thread of its own, with pauses
        └────────────────── answers a question ◀─────────────┘ that double, for nothing that matters

So what a dead gateway costs is the calls that were under way there. If none is good, a call waits a little
for one and is then refused: nothing was sent.

A gateway closes a connection that was idle for 60 s and tells nobody: the next call would be written into
it and fail with an unknown outcome. So a connection that was idle for half of that is not used again,
nor one on which something arrived that nobody asked for, which is how the end of a stream looks.

All is called in the threads of hbase.py, each of which uses one connection at a time; ``take_ready``,
``give_back`` and ``discard`` also on the event loop. A connection that the loop has used stays the loop's
(``Gateway.ready``), so there are up to twice as many as calls may be under way.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import Any, NamedTuple

import thriftpy2.protocol
import thriftpy2.transport
from thriftpy2.thrift import TClient, TException

from broker.storage.cells import CellsRefused
from broker.storage.hbase_exchange import IDL, Line

_transport: Any = thriftpy2.transport  # Neither has types.
_protocol: Any = thriftpy2.protocol

PAUSE_S_FIRST = 0.05
PAUSE_S_MAX = 2.0
DOUBTED_S = 0.5
"""How long others are preferred to a gateway that answers with an exception."""


class Address(NamedTuple):
    """Where a gateway listens."""

    host: str
    port: int


class Timeouts(NamedTuple):
    """How long things may take, in seconds."""

    call_s: float
    connect_s: float
    idle_s: float


@dataclass(slots=True, eq=False)
class Gateway:
    """One gateway, and how it has been answering."""

    address: Address
    under_way: int = 0
    suspect: bool = False
    doubted_until: float = 0.0
    idle: deque[Connection] = field(default_factory=deque)
    """For threads, and for the loop once it has used up the others."""
    ready: deque[Connection] = field(default_factory=deque)
    """For the loop alone, which looks at them all the time."""


class Connection:
    """An open connection. ``line`` is there once the event loop uses it: then no thread may."""

    __slots__ = ("_poll", "client", "gateway", "is_added", "last_used", "line", "socket")

    def __init__(self, gateway: Gateway, socket: Any, client: TClient) -> None:
        """Keep a socket that is connected."""
        self.gateway = gateway
        self.socket = socket
        self.client = client
        self.last_used = 0.0
        self.is_added = False
        """Whether it was made for somebody who has not taken it yet."""
        self.line: Line | None = None
        self._poll = select.poll()
        self._poll.register(socket.sock, select.POLLIN)

    def is_silent(self) -> bool:
        """Whether nothing has arrived, not even the end of the stream, and nothing has been read."""
        return (self.line is None or not self.line.is_over) and not self._poll.poll(0)

    def in_loop(self) -> Line:
        """Return the line by which the running loop uses the connection, from now on alone."""
        if self.line is None:
            self.line = Line(self.socket.sock.fileno())
        return self.line

    def close(self) -> None:
        """Close it, from any thread."""
        if self.line is None:
            self.socket.close()
        else:
            self.line.close(self.socket.close)


class Connections:
    """The open connections to all gateways. Thread-safe."""

    def __init__(self, addresses: Sequence[Address], timeouts: Timeouts) -> None:
        """Know the gateways; nothing is opened before it is needed."""
        assert addresses, "at least one gateway"
        self._timeouts = timeouts
        self._gateways = [Gateway(address) for address in addresses]
        self._taken: set[Connection] = set()
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = threading.Event()

    def take(self) -> Connection:
        """Return a connection to the gateway that looks best.

        Raises:
            CellsRefused: no gateway can be connected to, also not after a little while.
        """
        deadline = time.monotonic() + self._timeouts.connect_s
        while True:
            gateway = self._chosen(deadline)
            try:
                connection = self._idle(gateway) or self._connected(gateway, self._timeouts.call_s)
            except (TException, OSError):
                self._release(gateway, failed=True)
                continue
            with self._lock:
                self._taken.add(connection)
            return connection

    def add(self) -> None:
        """Have a connection more, or an idle one at least, to a good gateway. Raises as ``take``."""
        connection = self.take()
        connection.is_added = True
        self.give_back(connection, doubtful=False)

    def take_ready(self, *, anywhere: bool = False) -> Connection | None:
        """Return an open connection to the gateway that looks best; None if there is none. At once.

        ``anywhere``: to any good gateway, if that one has none. Whoever had a connection made must take
        it so: equal gateways take turns, and the turn may never be that one's.
        """
        with self._lock:
            good = [gateway for gateway in self._gateways if not gateway.suspect]
            if not good or self._closed.is_set():
                return None
            gateway = self._best(good)
            connection = self._open(gateway.ready) or self._open(gateway.idle)
            if connection is None:
                gateway.under_way -= 1
                if anywhere:
                    found = (self._open(one.ready) or self._open(one.idle) for one in good)
                    connection = next(filter(None, found), None)
                if connection is not None:
                    connection.gateway.under_way += 1
            if connection is not None:
                self._taken.add(connection)
        return connection

    def _chosen(self, deadline: float) -> Gateway:
        with self._lock:
            while True:
                good = [gateway for gateway in self._gateways if not gateway.suspect]
                left_s = deadline - time.monotonic()
                if self._closed.is_set() or (not good and left_s <= 0):
                    raise CellsRefused("no gateway of HBase takes connections")
                if good:
                    break
                self._changed.wait(left_s)
            return self._best(good)

    def _best(self, good: list[Gateway]) -> Gateway:
        """Return the one to ask, which has one more call under way. The caller holds the lock."""
        best = good[0]
        if len(good) > 1:
            now = time.monotonic()
            # Of equal ones each in its turn.
            turn = next(self._turn) % len(good)
            best = min(good[turn:] + good[:turn], key=lambda each: _rank(each, now))
        best.under_way += 1
        return best

    def _idle(self, gateway: Gateway) -> Connection | None:
        with self._lock:
            return self._open(gateway.idle)

    def _open(self, waiting: deque[Connection]) -> Connection | None:
        """Return the one that was used last, unless it is none any more. The caller holds the lock."""
        while waiting:
            connection = waiting.pop()
            idle_s = time.monotonic() - connection.last_used
            is_silent = connection.is_silent()
            was_added, connection.is_added = connection.is_added, False
            if idle_s < self._timeouts.idle_s and is_silent:
                return connection
            connection.close()
            if was_added and not is_silent:
                # A gateway, or what stands before it, that takes connections only to end them.
                self._suspect(connection.gateway)
        return None

    def _connected(self, gateway: Gateway, answer_s: float) -> Connection:
        socket = _transport.TSocket(
            gateway.address.host,
            gateway.address.port,
            socket_timeout=int(answer_s * 1000),
            connect_timeout=int(self._timeouts.connect_s * 1000),
        )
        stream = _transport.TBufferedTransportFactory().get_transport(socket)
        protocol = _protocol.TBinaryProtocolFactory().get_protocol(stream)
        stream.open()
        return Connection(gateway, socket, TClient(IDL.THBaseService, protocol))

    def give_back(self, connection: Connection, *, doubtful: bool) -> None:
        """Take back a connection whose call was answered; ``doubtful``: with an exception."""
        gateway = connection.gateway
        connection.last_used = time.monotonic()
        with self._lock:
            self._taken.discard(connection)
            gateway.under_way -= 1
            gateway.doubted_until = connection.last_used + DOUBTED_S if doubtful else 0.0
            (gateway.idle if connection.line is None else gateway.ready).append(connection)

    def discard(self, connection: Connection, *, failed: bool) -> None:
        """Close a connection that is out of step; ``failed``: the gateway cut it, or was silent."""
        with self._lock:
            self._taken.discard(connection)
        connection.close()
        self._release(connection.gateway, failed=failed)

    def _release(self, gateway: Gateway, *, failed: bool) -> None:
        with self._lock:
            gateway.under_way -= 1
            if failed:
                self._suspect(gateway)

    def _suspect(self, gateway: Gateway) -> None:
        """Have a gateway asked by a thread of its own until it answers. The caller holds the lock."""
        if gateway.suspect:
            return
        for waiting in (gateway.idle, gateway.ready):
            while waiting:
                waiting.pop().close()
        name = f"hbase-{gateway.address.host}:{gateway.address.port}"
        asking = threading.Thread(target=self._restore, args=(gateway,), name=name, daemon=True)
        gateway.suspect = True
        try:
            asking.start()
        except RuntimeError:
            # No thread is to be had. Nobody would ever ask it, so whoever calls next finds out.
            gateway.suspect = False

    def _restore(self, gateway: Gateway) -> None:
        """Ask a suspect until it answers."""
        pause_s = PAUSE_S_FIRST
        while not self._answers(gateway):
            if self._closed.wait(pause_s):
                return
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        with self._lock:
            gateway.suspect = False
            self._changed.notify_all()

    def _answers(self, gateway: Gateway) -> bool:
        """Ask what a gateway knows by itself, whatever state HBase is in."""
        try:
            connection = self._connected(gateway, self._timeouts.connect_s)
        except (TException, OSError):
            return False
        try:
            connection.client.getThriftServerType()
        except Exception:  # noqa: BLE001  Whatever stands there, it is no gateway; and who asks must go on.
            return False
        finally:
            connection.close()
        return True

    def cut(self) -> None:
        """End the calls that are under way, whatever becomes of them, and take no more."""
        with self._lock:
            self._closed.set()
            self._changed.notify_all()
            for connection in self._taken:
                # Whoever waits for an answer wakes up and closes it.
                with suppress(OSError):
                    connection.socket.sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close what is idle, and ask nobody any more."""
        self._closed.set()
        for gateway in self._gateways:
            for waiting in (gateway.idle, gateway.ready):
                while waiting:
                    waiting.pop().close()


def _rank(gateway: Gateway, now: float) -> tuple[bool, int]:
    return now < gateway.doubted_until, gateway.under_way

"""End idle connections when a node drains, so that no request is lost with them.

A client that sends a request just as its connection closes gets no answer. It can't know whether the node read the
request. A connection with requests ends with an answer that says ``Connection: close``. The other connections are idle.
They end like this::

    idle, of this project's client ──> gets a 408 at once, without a request. From then on the node reads
                                       nothing, and the client knows it: a request that it has just sent
                                       counts as not sent (RFC 9110, 15.5.9)
    idle, of any other client      ──> stays open for a while: the node answers a request, and closes the
                                       connection with that answer; without a request it closes it

The node closes the listener as soon as no client needs it for forwarding. It does not wait until no request is in
flight. A client that knows no other node connects again after each last answer, so some request would always be in
flight. A client whose connection is refused knows that nothing was sent. But when a listener closes, the kernel cuts the
connections that wait in its queue. So at the end the node shrinks the queue to one place and accepts all connections
that wait. Then it takes the one place with a connection of its own. It does all this without a pause::

    the first packets of new connections are dropped; their senders try again after a second
                               │              ┌─ refused, or accepted by the next process
                               ▼              ▼
    ──accepts──┴─accepts the queue──┴─full─┴──closed── accepted requests are answered ──▶

After its last answer, a connection (``Lingering``) stays half open until the client closes it, at most for ``LINGER_S``. If the node
closed it with unread bytes in its socket, the kernel would reset it, and the last answer might be lost. While a part of
the answer still waits in this process, the time begins again for each client that reads at the least rate.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from aiohttp import web
from typing_extensions import override

from broker.http.budget import Account, BudgetKind
from broker.http.reply import Reply

PATIENCE_S: Final = 1.0
"""How long idle connections of other clients stay. A client that sends a request each second gets its answer."""

LINGER_S: Final = 1.0
TAKEN_BYTES_A_SECOND_MIN: Final = 512
"""The least bytes per second that a client must read of its reply."""

LAST_WORDS: Final = Reply(408, headers=(("Broker-Outcome", "refused"),), close=True)
FILLINGS_MAX: Final = 100
"""How often at most the node empties and fills a listener's queue. A client may take the place each time."""

ITERATIONS_TO_ACCEPT: Final = 8
"""More iterations of the loop than it needs from accepting a connection to calling ``connection_made``."""
ITERATIONS_TO_BEGIN: Final = 5
"""More iterations of the loop than aiohttp needs from the last byte of a head, or from a reply, to the next handler."""


class Idle(Protocol):
    """A connection, with the parts that its end needs."""

    @property
    def in_use(self) -> bool:
        """True if a request is being served, or has begun to arrive."""

    @property
    def has_unread(self) -> bool:
        """True if the socket has bytes that the loop has not read yet."""

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the socket has not taken: a cut loses them."""

    @property
    def is_ours(self) -> bool:
        """True if the client understands an unsolicited 408."""

    def refuse(self, answer: Reply) -> None:
        """Answer although no request came, and end the connection. Drop all bytes that still arrive."""

    def linger(self) -> None:
        """Send the end, and leave the connection to a ``Lingering``."""

    def cut(self) -> None:
        """Cut the connection at once."""


class Lingering(asyncio.Protocol):
    """A connection after its last reply: the protocol in place of the one that served it. It drops bytes that arrive.

    A client may leave very many such connections, so each is small.
    """

    def __init__(
        self, transport: asyncio.Transport, account: Account, lost: Callable[[Lingering], object]
    ) -> None:
        """Take over a connection whose end was sent, with what it holds. ``lost`` is called at its end."""
        self._transport = transport
        self._account = account
        self._lost = lost
        account.cut_by(self._cut)
        transport.set_protocol(self)

    @property
    def untaken_bytes(self) -> int:
        """The number of written bytes that the client has not taken; 0 if all of them are in the socket."""
        return untaken_bytes(self._transport) if self._transport.get_write_buffer_size() else 0

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._account.close()
        self._lost(self)

    def cut(self) -> None:
        """Cut the connection at once."""
        self._transport.abort()

    def _cut(self, _: BudgetKind) -> None:
        self.cut()


class Drain:
    """The idle connections of a node that drains. Use it in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, has_requests: Callable[[], bool]) -> None:
        """Begin without connections. ``has_requests`` returns whether a request is served, or begins to arrive."""
        self.connections: set[Idle] = set()
        self.lingering: dict[Lingering, asyncio.TimerHandle] = {}
        """The connections after their last reply, each with the timer that cuts it."""
        self._loop = loop
        self._has_requests = has_requests
        self._quiet: asyncio.Future[None] | None = None

    async def quiet(self) -> None:
        """Wait until no request is served or has begun to arrive, and all idle connections have ended."""
        while self._is_busy:
            self._quiet = self._loop.create_future()
            await asyncio.wait((self._quiet,))

    def look(self) -> None:
        """Check whether all is quiet now. Call this after a request or a connection has ended."""
        quiet = self._quiet
        if quiet is not None and not quiet.done() and not self._is_busy:
            quiet.set_result(None)

    @property
    def _is_busy(self) -> bool:
        return bool(self.connections or self.lingering or self._has_requests())

    def part(self, connection: Idle, patience_s: float) -> None:
        """End an idle connection: at once if the client is ours, else after ``patience_s``."""
        self.connections.add(connection)
        if connection.is_ours or not patience_s:
            settled(partial(self._dismiss, connection))
        else:
            self._loop.call_later(patience_s, settled, partial(self._dismiss, connection))

    def gone(self, connection: Idle) -> None:
        """Forget a connection that was closed, or is no longer idle."""
        self.connections.discard(connection)
        self.look()

    def linger(
        self, transport: asyncio.Transport, account: Account, seconds: float = LINGER_S
    ) -> None:
        """Wait until the client closes a connection whose end was sent, then cut it."""
        self._look_after(Lingering(transport, account, self._lost), seconds)

    def cut_lingering(self) -> None:
        """Cut the connections that still linger."""
        for connection in list(self.lingering):
            connection.cut()

    def _look_after(self, connection: Lingering, seconds: float = LINGER_S) -> None:
        untaken = connection.untaken_bytes
        self.lingering[connection] = self._loop.call_later(seconds, self._cut, connection, untaken)

    def _lost(self, connection: Lingering) -> None:
        """Forget a connection that the client has closed, or that was cut."""
        timer = self.lingering.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self.look()

    def _dismiss(self, connection: Idle) -> None:
        if connection not in self.connections:
            return
        if connection.in_use:
            self.gone(connection)  # Its answer will be the last.
        elif connection.is_ours:
            connection.refuse(LAST_WORDS)
        elif connection.has_unread:
            # If the loop was delayed, it runs timers before it reads bytes that have arrived.
            settled(partial(self._dismiss, connection))
        elif connection.unsent_bytes:
            connection.linger()
        else:
            connection.cut()

    def _cut(self, connection: Lingering, untaken: int) -> None:
        """Cut it, unless the node has unsent bytes, and its client took some since there were ``untaken`` ones."""
        most = max(untaken - LINGER_S * TAKEN_BYTES_A_SECOND_MIN, 0)
        if untaken and connection.untaken_bytes <= most:
            self._look_after(connection)
        else:
            connection.cut()


def settled(then: Callable[[], object], iterations: int = ITERATIONS_TO_BEGIN) -> None:
    """Call ``then`` after some iterations of the loop: then a handler has each request that has arrived."""
    loop = asyncio.get_running_loop()
    if iterations:
        loop.call_soon(settled, then, iterations - 1)
    else:
        then()


def has_arrived(transport: asyncio.BaseTransport) -> bool:
    """Return whether the socket has bytes that the loop has not read yet."""
    look = select.poll()
    look.register(transport.get_extra_info("socket"), select.POLLIN)
    return bool(look.poll(0))


def untaken_bytes(transport: asyncio.Transport) -> int:
    """Return how many written bytes the client has not taken: also those in the socket."""
    untaken = transport.get_write_buffer_size()
    with suppress(OSError, ValueError):  # The socket may be closed.
        told = fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
        untaken += int.from_bytes(told, sys.byteorder)
    return untaken


def half_close(transport: asyncio.Transport) -> bool:
    """Shut down the sending side. Return False if the connection is cut, or being closed.

    Bytes that still arrive are read, so that the socket has no unread bytes when it is closed.
    """
    if transport.is_closing():
        return False
    try:
        transport.write_eof()
    except OSError:
        return False
    if not transport.is_reading():
        transport.resume_reading()
    return True


async def stop_accepting(listening: socket.socket, site: web.BaseSite, serve: web.Server) -> None:
    """Close a listener without cutting any client: first accept all clients that have connected.

    asyncio accepts a connection in one iteration, and makes its transport in the next. A listener that closes
    between the two would leave this connection open and unread. So the loop stops accepting some iterations before.
    """
    loop = asyncio.get_running_loop()
    loop.remove_reader(listening.fileno())
    await _pass_iterations()
    accepted: list[socket.socket] = []
    own: list[socket.socket] = []
    try:
        with socket.socket(fileno=os.dup(listening.fileno())) as queue:
            queue.setblocking(False)
            accepted += _accept_last(queue, own)
        await site.stop()
        while accepted:
            connection = accepted.pop(0)
            connection.setblocking(False)
            await loop.connect_accepted_socket(serve, connection)
        await _pass_iterations()
    finally:
        for left in own + accepted:
            left.close()


async def _pass_iterations() -> None:
    """Return when each connection that the loop has accepted so far is with its protocol."""
    for _ in range(ITERATIONS_TO_ACCEPT):
        await asyncio.sleep(0)


def _accept_last(queue: socket.socket, own: list[socket.socket]) -> list[socket.socket]:
    """Accept all connections in a listener's queue and leave the queue full. ``own`` gets the sockets that fill it.

    With a backlog of 0 the queue has room for one connection (listen(2) of Linux). If the connection that this
    function makes is complete at once, it has taken the place, and no other connection is in the queue.
    """
    accepted: list[socket.socket] = []
    if not queue.getsockname()[1]:
        return accepted  # No client can connect to a socket without an address, as a simulation has one.
    with suppress(OSError):
        queue.listen(0)
    for _ in range(FILLINGS_MAX):
        with suppress(OSError):
            while True:
                accepted.append(queue.accept()[0])
        filler = socket.socket(queue.family, socket.SOCK_STREAM)
        filler.setblocking(False)
        with suppress(OSError):
            filler.connect(_reachable(queue))
        own.append(filler)
        if _is_connected(filler):
            break
    return accepted


def _reachable(listening: socket.socket) -> tuple[str, int]:
    """Return the address at which this process reaches its own listener."""
    host, port = listening.getsockname()[:2]
    every = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - Compared only.
    return every.get(host, host), port


def _is_connected(sock: socket.socket) -> bool:
    """Return whether a connection that this process made is complete."""
    look = select.poll()
    look.register(sock, select.POLLOUT)
    return look.poll(0) == [(sock.fileno(), select.POLLOUT)]

"""How idle connections end when a node drains, so that no request is lost with them.

A request that is sent at the moment at which its connection is closed is answered by nobody, and its
sender can't tell whether it was read. Connections on which requests come end with an answer that says
``Connection: close``; what remains are those on which nothing is under way::

    idle, of this project's client ──> last words at once: an answer 408, though nothing was asked.
                                       From then on nothing is read, and that client knows it: what it
                                       has just sent is as good as never sent (RFC 9110, 15.5.9)
    idle, of anybody else          ──> stays for a while: what is asked is answered, as the last of the
                                       connection; if nothing was, it is closed

The listener is closed as soon as nobody needs this node to forward, and not only when nothing is under
way: clients that know no other node connect again after each last answer, and there would always be one
of them. A client that is refused knows that nothing was sent. But the kernel cuts connections that wait to be
accepted when a listener closes. So at the end the listener's queue gets room for one connection, those that
wait are accepted, and a connection of this process takes the place, all at one go::

    the first packets of new connections are dropped; their senders try again after a second
                               │              ┌─ refused, or taken by the process that comes next
                               ▼              ▼
    ──accepts──┴─accepts what waits─┴─full─┴──closed── what was accepted is answered ──▶

After its last words, or its last answer, a connection stays half open until the client ends it, at most
``LINGER_S``: closed with something unread in its socket, it would be reset, and the words might be lost.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

PATIENCE_S: Final = 1.0
"""How long other people's idle connections stay. Who asks once a second or oftener is answered."""

LINGER_S: Final = 1.0

LAST_WORDS: Final = (
    b"HTTP/1.1 408 Request Timeout\r\n"
    b"Broker-Outcome: refused\r\n"
    b"Content-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)
FILLINGS_MAX: Final = 100
"""How often at most a listener's queue is emptied and filled; clients that connect meanwhile come first."""

TURNS_TO_ACCEPT: Final = 8
"""From a connection that the loop has accepted to one that is known here, and some."""


class Idle(Protocol):
    """A connection, as far as its end goes."""

    @property
    def in_use(self) -> bool:
        """Whether a request is under way, or has begun to arrive."""

    @property
    def has_unread(self) -> bool:
        """Whether something lies in the socket that the loop has not come to yet."""

    @property
    def is_ours(self) -> bool:
        """Whether the client understands an unsolicited 408."""

    def dismiss(self, words: bytes) -> None:
        """Send the last words and the end, and read nothing more."""

    def force_close(self) -> None:
        """Cut it."""


class Drain:
    """The idle connections of a node that drains; used in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_loud: Callable[[], bool]) -> None:
        """Know of no connection; ``is_loud`` tells whether a request is under way, or begins to arrive."""
        self.connections: set[Idle] = set()
        self._loop = loop
        self._is_loud = is_loud
        self._quiet: asyncio.Future[None] | None = None

    async def quiet(self) -> None:
        """Return once no request is under way or has begun to arrive, and idle clients have gone."""
        while self.connections or self._is_loud():
            self._quiet = self._loop.create_future()
            await asyncio.wait((self._quiet,))

    def look(self) -> None:
        """Be told that something has ended."""
        quiet = self._quiet
        if quiet is not None and not quiet.done() and not self.connections and not self._is_loud():
            quiet.set_result(None)

    def part(self, connection: Idle, patience_s: float) -> None:
        """See to the end of an idle connection."""
        self.connections.add(connection)
        if connection.is_ours or not patience_s:
            self._dismiss(connection)
        else:
            self._loop.call_later(patience_s, self._dismiss, connection)

    def gone(self, connection: Idle) -> None:
        """Be told that it was closed, or is idle no more."""
        self.connections.discard(connection)
        self.look()

    def linger(self, connection: Idle, seconds: float | None = None) -> None:
        """Wait for the client of a connection that was sent its end."""
        self.connections.add(connection)
        self._loop.call_later(LINGER_S if seconds is None else seconds, self._cut, connection)

    def _dismiss(self, connection: Idle) -> None:
        if connection not in self.connections:
            return
        if connection.in_use:
            self.gone(connection)  # Its answer will be the last.
        elif connection.is_ours:
            connection.dismiss(LAST_WORDS)
            self.linger(connection)
        elif connection.has_unread:
            # Where the loop was held up, timers come before what has arrived meanwhile.
            self._loop.call_soon(self._dismiss, connection)
        else:
            connection.force_close()

    def _cut(self, connection: Idle) -> None:
        if connection in self.connections:
            connection.force_close()


def has_arrived(transport: asyncio.BaseTransport) -> bool:
    """Whether something lies in the socket that the loop has not come to yet."""
    look = select.poll()
    look.register(transport.get_extra_info("socket"), select.POLLIN)
    return bool(look.poll(0))


def half_close(transport: asyncio.Transport, words: bytes = b"") -> bool:
    """Send the end, and before it ``words``; False: the client has cut it, or is about to.

    What still comes is read, so that there is nothing unread when it is closed.
    """
    if transport.is_closing():
        return False
    if words:
        transport.write(words)
    try:
        transport.write_eof()
    except OSError:
        return False
    if not transport.is_reading():
        transport.resume_reading()
    return True


async def stop_accepting(server: asyncio.Server, serve: Callable[[], asyncio.Protocol]) -> None:
    """Close a listener so that no client that has connected is cut; those that have are accepted."""
    loop = asyncio.get_running_loop()
    accepted: list[socket.socket] = []
    own: list[socket.socket] = []
    try:
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as queue:
                queue.setblocking(False)
                accepted += _accept_last(queue, own)
        server.close()
        for connection in accepted:
            connection.setblocking(False)
            await loop.connect_accepted_socket(serve, connection)
        for _ in range(TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
    finally:
        for filler in own:
            filler.close()


def _accept_last(queue: socket.socket, own: list[socket.socket]) -> list[socket.socket]:
    """Accept what waits in a listener's queue, and leave that full; ``own`` gets what fills it.

    With a backlog of 0 the queue has room for one connection (listen(2) of Linux). If the one that this
    function makes is complete at once, it has the place, and no other is behind or before it.
    """
    accepted: list[socket.socket] = []
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
    """Return where this process reaches its own listener."""
    host, port = listening.getsockname()[:2]
    every = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - Compared only.
    return every.get(host, host), port


def _is_connected(sock: socket.socket) -> bool:
    """Whether a connection of this process is complete."""
    look = select.poll()
    look.register(sock, select.POLLOUT)
    return look.poll(0) == [(sock.fileno(), select.POLLOUT)]

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
of them. Who is refused knows that nothing was sent. But the kernel cuts whoever has connected and was not
accepted when a listener closes, so before that it takes no further connection, and who waits is accepted::

    first packets of new connections are dropped; their senders try again after a second
                     │                              ┌─ refused, or taken by the process that comes next
                     ▼                              ▼
    ──accepts────────┴──the last ones are accepted──┴──closed── what was accepted is answered ──▶

After its last words, or its last answer, a connection stays half open until the client ends it, at most
``LINGER_S``: closed with something unread in its socket, it would be reset, and the words might be lost.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import socket
import struct
import sys
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
OUR_CLIENT: Final = "broker-client"
"""The ``User-Agent`` of the client that knows last words."""

TURNS_TO_ACCEPT: Final = 8
"""From a connection that the loop has accepted to one that is known here, and some."""

HANDSHAKES_S: Final = 0.02
"""How long a connection of which the first packet was taken has to be there."""

_SO_ATTACH_FILTER: Final = 26
_DROP_FIRST_PACKETS: Final = (
    (0x30, 0, 0, 13),  # Load byte 13 of the TCP header, the flags,
    (0x54, 0, 0, 0x12),  # of which SYN and ACK count.
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # Then drop it,
    (0x06, 0, 0, 0xFFFFFFFF),  # else take it whole.
)
"""A packet filter of Linux: operation, jump if so, jump if not, operand (linux/filter.h)."""


class Idle(Protocol):
    """A connection, as far as its end goes."""

    @property
    def in_use(self) -> bool:
        """Whether a request is under way, or has begun to arrive."""

    @property
    def has_read_ahead(self) -> bool:
        """Whether a request was read while the one before it was under way, and is not answered."""

    @property
    def has_unread(self) -> bool:
        """Whether something lies in the socket that the loop has not come to yet."""

    @property
    def knows_last_words(self) -> bool:
        """Whether the client takes an answer to nothing for what it is."""

    def dismiss(self, words: bytes) -> None:
        """Send the last words and the end, and read nothing more."""

    def force_close(self) -> None:
        """Cut it."""


class Parting:
    """The idle connections of a node that drains; ``changed`` is called when one has gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Know of no connection."""
        self.connections: set[Idle] = set()
        self._loop = loop
        self._changed = changed

    def part(self, connection: Idle, patience_s: float) -> None:
        """See to the end of an idle connection."""
        self.connections.add(connection)
        if connection.knows_last_words or not patience_s:
            self._dismiss(connection)
        else:
            self._loop.call_later(patience_s, self._dismiss, connection)

    def gone(self, connection: Idle) -> None:
        """Be told that it was closed, or is idle no more."""
        self.connections.discard(connection)

    def linger(self, connection: Idle) -> None:
        """Wait for the client of a connection that was sent its end."""
        self.connections.add(connection)
        self._loop.call_later(LINGER_S, self._cut, connection)

    def _dismiss(self, connection: Idle) -> None:
        if connection not in self.connections:
            return
        if connection.in_use:
            self.gone(connection)  # Its answer will be the last.
            self._changed()
        elif connection.has_read_ahead:
            self._loop.call_soon(self._dismiss, connection)  # It begins within some turns.
        elif connection.knows_last_words:
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
    """Close a listener so that nobody who has connected is cut; those who have are accepted."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        take_no_more(listening.fileno())
        loop.remove_reader(listening.fileno())  # Another loop than asyncio's goes on; so it may.
    await asyncio.sleep(HANDSHAKES_S)
    while await _accept_waiting(server, serve):
        pass
    server.close()
    for _ in range(TURNS_TO_ACCEPT):
        await asyncio.sleep(0)


def take_no_more(file: int) -> bool:
    """Let no further connection begin at a listening socket; False: this system can't be told so.

    Without it, whoever connects in the moment between the last look and the closing is cut.
    """
    if not sys.platform.startswith("linux"):
        return False
    code = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *line) for line in _DROP_FIRST_PACKETS)
    )
    program = struct.pack("@HP", len(_DROP_FIRST_PACKETS), ctypes.addressof(code))
    with socket.socket(fileno=os.dup(file)) as listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        except OSError:  # A kernel that only looks like one, such as a sandbox's.
            return False
    return True


async def _accept_waiting(server: asyncio.Server, serve: Callable[[], asyncio.Protocol]) -> bool:
    """Accept who waits in the listener's queue; False: there was nobody at the end of the call."""
    accepted: list[socket.socket] = []
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as queue, suppress(OSError):
            queue.setblocking(False)
            while True:
                accepted.append(queue.accept()[0])
    for connection in accepted:
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(serve, connection)
    return bool(accepted)

"""Simulated sockets for code that uses them: addresses, options without effect, a queue of connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from broker.testing.simulation.connection_end import End

Address = tuple[str, int]

_silent: list[int] = []


def silent_descriptor() -> int:
    """Return a descriptor that never has bytes to read. The whole process has one."""
    if not _silent:
        _silent.extend(os.pipe())
    return _silent[0]


class SimSocket:
    """The part of a socket's interface that servers and clients use."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, own: Address, peer: Address | None = None) -> None:
        """Keep the addresses."""
        self._own = own
        self._peer = peer

    def getsockname(self) -> Address:
        """Return the own address."""
        return self._own

    def getpeername(self) -> Address:
        """Return the other end's address. Raises OSError."""
        if self._peer is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._peer

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""

    def setblocking(self, _: bool) -> None:
        """Do nothing: nothing here blocks."""

    def fileno(self) -> int:
        """Return a descriptor that is never ready: the simulated loop delivers bytes without it."""
        return silent_descriptor()

    def close(self) -> None:
        """Do nothing."""


class ListeningSocket(SimSocket):
    """An address at which a process listens, with the connections that it has not accepted yet.

    ``serve`` makes the protocol for each connection. Until it is set, connections wait in the queue. The descriptor is
    that of a real socket without an address. Code may set options on it, and finds no connections there.
    """

    def __init__(self, own: Address, context: Context) -> None:
        """Listen at ``own`` for the process of ``context``."""
        super().__init__(own)
        self.context = context
        self.is_open = True
        self.is_named = True
        self.queue: deque[End] = deque()
        self.serve: Callable[[], asyncio.BaseProtocol] | None = None
        self._real = socket.socket()

    @override
    def fileno(self) -> int:
        """Return a descriptor that no other socket has."""
        return self._real.fileno()

    def connected(self, end: End) -> None:
        """Add a new connection to the queue, and accept it soon."""
        self.queue.append(end)
        if self.serve is not None:
            asyncio.get_running_loop().call_soon(self.accept_all, context=self.context)

    def accept_all(self) -> None:
        """Accept all waiting connections."""
        while self.queue and self.serve is not None:
            self.queue.popleft().attach(self.serve())

    @override
    def close(self) -> None:
        """Stop listening, and abort the waiting connections."""
        self.is_open = False
        self.serve = None
        self._real.close()
        while self.queue:
            self.queue.popleft().abort()

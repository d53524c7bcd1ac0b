"""What stands where code looks at a socket: addresses, options that do nothing, a queue of connections."""

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
    """Return a descriptor from which nothing can ever be read, the same one in the whole process."""
    if not _silent:
        _silent.extend(os.pipe())
    return _silent[0]


class SimSocket:
    """A socket, as far as anybody asks."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, own: Address, peer: Address | None = None) -> None:
        """Have addresses."""
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
        """Return a descriptor that is never ready: what has arrived is known to the loop at once."""
        return silent_descriptor()

    def close(self) -> None:
        """Do nothing."""


class ListeningSocket(SimSocket):
    """An address at which a process listens, with the connections that nobody has accepted.

    ``serve`` is what accepts them; until it is set they wait. Its descriptor is that of a real socket, which
    nobody can reach: whoever sets options or looks for connections there finds none.
    """

    def __init__(self, own: Address, context: Context) -> None:
        """Listen at ``own`` in the name of whoever owns ``context``."""
        super().__init__(own)
        self.context = context
        self.is_open = True
        self.is_named = True
        self.queue: deque[End] = deque()
        self.serve: Callable[[], asyncio.BaseProtocol] | None = None
        self._real = socket.socket()

    @override
    def fileno(self) -> int:
        """Return a descriptor that stands for it alone."""
        return self._real.fileno()

    def connected(self, end: End) -> None:
        """Have a new connection."""
        self.queue.append(end)
        if self.serve is not None:
            asyncio.get_running_loop().call_soon(self.accept_all, context=self.context)

    def accept_all(self) -> None:
        """Hand over whoever waits."""
        while self.queue and self.serve is not None:
            self.queue.popleft().attach(self.serve())

    @override
    def close(self) -> None:
        """Listen no more; whoever waits is cut."""
        self.is_open = False
        self.serve = None
        self._real.close()
        while self.queue:
            self.queue.popleft().abort()

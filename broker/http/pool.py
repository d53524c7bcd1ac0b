"""Connections that are kept open between requests; each is used for one request at a time.

A request waits for a place, of which there are ``connections_max``, and then takes an idle connection to
its server or has a new one opened. Of those that are idle no more are kept than there are places.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from broker.http.outbound import OutboundConnection

AnyConnection = TypeVar("AnyConnection", bound=OutboundConnection)


class Pool(Generic[AnyConnection]):
    """Connections to one server, or to several. To be used in one event loop."""

    def __init__(self, connections_max: int, idle_s_max: float) -> None:
        """Connect to no server yet; a connection is not used again after ``idle_s_max`` without a request."""
        self._places = asyncio.Semaphore(connections_max)
        self._connections_max = connections_max
        self._idle_s_max = idle_s_max
        self._idle: list[AnyConnection] = []
        self._busy: dict[AnyConnection, None] = {}

    async def enter(self, timeout_s: float) -> bool:
        """Wait for a place, and tell whether there was one in time."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Give a place back."""
        self._places.release()

    def take(self, url: str) -> AnyConnection | None:
        """Return the idle connection to ``url`` that was used last; None: ``add`` one. To be called with a place."""
        for at in reversed(range(len(self._idle))):
            if self._idle[at].url == url:
                connection = self._idle.pop(at)
                if connection.is_fresh(self._idle_s_max):
                    self._busy[connection] = None
                    return connection
                connection.close()
        self._close_old()
        return None

    def add(self, connection: AnyConnection) -> AnyConnection:
        """Take a connection that was opened for a place, and return it."""
        self._busy[connection] = None
        return connection

    def put_back(self, connection: AnyConnection) -> None:
        """End the use of a connection, and keep it; one that still waits for an answer is closed."""
        self._busy.pop(connection, None)
        if connection.requests_in_flight:
            connection.close()
        if connection.usable:
            self._idle.append(connection)
            if len(self._idle) > self._connections_max:
                self._idle.pop(0).close()

    def _close_old(self) -> None:
        """Close those idle for too long, the first ones; each new connection is an occasion."""
        oldest = asyncio.get_running_loop().time() - self._idle_s_max
        while self._idle and not (self._idle[0].usable and self._idle[0].idle_since >= oldest):
            self._idle.pop(0).close()

    def close(self, reason: str) -> None:
        """Close all; requests under way end as unanswered, for that reason."""
        for connection in [*self._idle, *self._busy]:
            connection.close(reason)
        self._idle.clear()

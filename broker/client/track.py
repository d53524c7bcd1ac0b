"""One connection of a publisher. It keeps requests in order when they fail or the leader changes.

Several requests at a time are in flight on the connection, and the broker processes them in its order. Two
things would break this order: a request that is sent again, and a next request that goes to another node. So each
request has a ticket. It leaves only when every earlier ticket is settled, or in flight on the same connection::

    [ 1: sent on A ] [ 2: sent on A ] [ 3 ]      3 may be sent on A
    [ 1: waits to be sent again ]     [ 2 ]      2 waits for 1
    [ 1: sent on A ]  A is not leader [ 2 ]      2 waits for the answer to 1; then it opens a connection to B

Only the first request of the line opens connections. One case remains: if the broker refuses 1 for now and
accepts 2, which was sent behind it, then 1 comes after 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.client import outcomes
from broker.client.client_request import ClientRequest, Reply
from broker.client.connection import ClientConnection
from broker.client.transport import NO_CONNECTION, Transport
from broker.client.values import Settings
from broker.model import TopicId
from broker.shield import bare


class TrackTicket:
    """A request's place in the line. ``connection`` is set while the request is in flight."""

    __slots__ = ("connection",)

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None


class Track:
    """A connection to the topic's leader, opened on demand, and the line of requests for it."""

    def __init__(self, topic: TopicId, settings: Settings, transport: Transport) -> None:
        self._topic = topic
        self._settings = settings
        self._transport = transport
        self._connection: ClientConnection | None = None
        self._line: list[TrackTicket] = []
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def under_way(self) -> int:
        """The number of requests that have a ticket."""
        return len(self._line)

    @property
    def has_place(self) -> bool:
        """True if another request may be sent now: only one at a time until the server is known to be ours."""
        ours = self._connection is not None and self._connection.ours
        return len(self._line) < (self._settings.requests_in_flight_max if ours else 1)

    def enter(self) -> TrackTicket:
        """Return a ticket. The caller gives it back with ``leave``."""
        ticket = TrackTicket()
        self._line.append(ticket)
        return ticket

    def leave(self, ticket: TrackTicket) -> None:
        """Remove the ticket of a settled request."""
        self._line.remove(ticket)
        self._wake()

    async def send(
        self, ticket: TrackTicket, request: Callable[[], ClientRequest], timeout_s: float
    ) -> Reply:
        """Call ``request`` when its turn has come, and send its result; see ``ClientConnection.send``.

        Raises:
            Unavailable: as there; also if its turn did not come in time, or no connection could be opened.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        connection = self._ready(ticket) or await self._turn(ticket, ends)
        ticket.connection = connection
        self._wake()
        try:
            return await connection.send(request(), ends - loop.time())
        finally:
            ticket.connection = None
            self._wake()

    def _ready(self, ticket: TrackTicket) -> ClientConnection | None:
        """Return the connection if this request may leave on it now."""
        connection = self._connection
        if connection is None or self._closed or not connection.good_for(self._topic):
            return None
        if self._line[0] is not ticket and not (
            connection.ours
            and all(other.connection is connection for other in self._before(ticket))
        ):
            return None
        return connection

    def _before(self, ticket: TrackTicket) -> list[TrackTicket]:
        return self._line[: self._line.index(ticket)]

    async def _turn(self, ticket: TrackTicket, ends: float) -> ClientConnection:
        """Wait until this request may leave. Open a connection if it is the first in the line."""
        try:
            async with asyncio.timeout_at(ends):
                while not self._closed:
                    connection = self._ready(ticket)
                    if connection is not None:
                        return connection
                    if self._may_reopen(ticket):
                        return await self._reopened()
                    await self._changed.wait()
        except TimeoutError as error:
            connects = self._may_reopen(ticket)
            why = NO_CONNECTION if connects else "earlier publishes of the topic are not settled"
            raise outcomes.never_sent(why) from bare(error)
        raise outcomes.never_sent("the client was closed")

    def _may_reopen(self, ticket: TrackTicket) -> bool:
        connection = self._connection
        if self._line[0] is not ticket:
            return False
        return connection is None or not connection.requests_in_flight

    async def _reopened(self) -> ClientConnection:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        connection = await self._transport.connect(self._topic)
        if self._closed:
            connection.close()
            raise outcomes.never_sent("the client was closed")
        self._connection = connection
        return connection

    def _wake(self) -> None:
        """Wake all requests that wait in the line."""
        self._changed.set()
        self._changed.clear()

    def close(self) -> None:
        """Close the track for good; requests in flight end as unanswered."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        self._wake()

    def close_if_idle(self, before: float) -> None:
        """Close the connection if it was last used before that time of the loop's clock."""
        connection = self._connection
        if connection is not None and not self._line and connection.idle_since < before:
            connection.close()
            self._connection = None

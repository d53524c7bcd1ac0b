"""Admit requests of other nodes.

Four checks come in this order: the sender knows the secret, both nodes know the protocol, the deadline has not passed,
and it is the request's turn in its lane. A request that is refused here was not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from broker.clock import Clock
from broker.errors import NoLeader, Overloaded
from broker.routing import nodeheaders
from broker.routing.lanes import LANES_MAX, LaneDecision, ReceivedLanes
from broker.routing.nodeheaders import NodeHeaders, Sender

TURN_S: Final = 1.0
"""The time for which a request waits for earlier requests of its lane. After it the sender must send the request again:
then it may know more outcomes."""


class Receiving:
    """Admits requests of other nodes, each in its turn."""

    def __init__(self, secret: str, clock: Clock, *, lanes_max: int = LANES_MAX) -> None:
        """Admit the nodes that know the secret."""
        self._secret = secret
        self._clock = clock
        self._lanes = ReceivedLanes(lanes_max)
        self._waiting: dict[tuple[Sender, int], asyncio.Event] = {}

    def parse(self, headers: Mapping[str, str]) -> tuple[NodeHeaders, float]:
        """Read a node's headers; return them and the deadline in monotonic seconds.

        Raises:
            Forbidden, NoLeader, BadRequest: see nodeheaders.parse.
            Overloaded: the deadline has passed.
        """
        node_headers = nodeheaders.parse(headers, self._secret)
        now_ms = self._clock.now_ms()
        return node_headers, nodeheaders.from_the_wire(
            node_headers.deadline_ms, self._clock.monotonic(), now_ms
        )

    @asynccontextmanager
    async def turn(self, node_headers: NodeHeaders, deadline: float) -> AsyncIterator[Handled]:
        """Wait for a request's turn. The block handles the request, and notes if its answer is final.

        Raises:
            NoLeader: it is not the request's turn yet; the sender may send it again, with a newer ticket.
            Overloaded: it is a late copy, or there are too many lanes.
        """
        handled = Handled()
        ticket = node_headers.ticket
        if ticket is None:
            yield handled
            return
        await self._wait(node_headers, deadline)
        try:
            yield handled
        finally:
            if handled.is_final:
                self._lanes.answered(node_headers.sender, ticket)
                self._wake((node_headers.sender, ticket.lane))

    async def _wait(self, node_headers: NodeHeaders, deadline: float) -> None:
        ticket = node_headers.ticket
        assert ticket is not None
        key = (node_headers.sender, ticket.lane)
        until = min(deadline, self._clock.monotonic() + TURN_S)
        while (turn := self._judge(node_headers, deadline)) is LaneDecision.WAIT:
            left_s = until - self._clock.monotonic()
            if left_s <= 0:
                raise NoLeader("Earlier requests of the same client are not resolved yet.")
            await self._wait_for_progress(key, left_s)
        self._wake(key)
        if turn is LaneDecision.LATE:
            raise Overloaded("This is a late copy of a request that has its outcome.")
        if turn is LaneDecision.FULL:
            raise Overloaded(
                "Too many clients write to this node through other nodes.", retry_after_s=1
            )

    def _judge(self, node_headers: NodeHeaders, deadline: float) -> LaneDecision:
        assert node_headers.ticket is not None
        return self._lanes.judge(
            node_headers.sender,
            node_headers.ticket,
            node_headers.repeat.attempt,
            deadline=deadline,
            now=self._clock.monotonic(),
        )

    async def _wait_for_progress(self, key: tuple[Sender, int], seconds: float) -> None:
        """Wait until a request of the lane was answered, or another one has arrived."""
        event = self._waiting.setdefault(key, asyncio.Event())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            if not event.is_set():
                # This request gives up. Remove its event; other waiters ask again, and make a new one.
                self._wake(key)

    def _wake(self, key: tuple[Sender, int]) -> None:
        event = self._waiting.pop(key, None)
        if event is not None:
            event.set()


@dataclass(slots=True)
class Handled:
    """The result of a request that had its turn. A request that ends without an answer has no outcome: it is not final."""

    is_final: bool = False

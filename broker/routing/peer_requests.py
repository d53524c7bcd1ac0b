"""Admit requests of other nodes.

The checks come in this order. Before the body is read: a node signed the request for this node, both nodes know the protocol,
and the request is no copy. Then: the body is the signed one, the deadline has not passed, and it is the request's turn in its
lane. A request that is refused here was not done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from broker.clock import Clock
from broker.errors import Forbidden, NoLeader, Overloaded
from broker.routing import nodeheaders
from broker.routing.lanes import LANES_MAX, LaneDecision, ReceivedLanes
from broker.routing.nodeheaders import Envelope, NodeHeaders, Sender

TURN_S: Final = 1.0
"""The time for which a request waits for earlier requests of its lane. After it the sender must send the request again:
then it may know more outcomes."""


NUMBERS_KEPT: Final = 65_536
"""A request whose number is lower than the sender's highest one by this is refused, so that its sender sends it anew."""
SENDERS_MAX: Final = 4096


class SeenNumbers:
    """The numbers of requests that arrived: for each sender, the highest, and which of those just below it."""

    def __init__(self) -> None:
        """Begin without a number."""
        self._seen: OrderedDict[Sender, tuple[int, int]] = OrderedDict()

    def take(self, sender: Sender, number: int) -> None:
        """Note a number. Raises NoLeader if it came before, or is too low to tell: nothing was done."""
        highest, bits = self._seen.get(sender, (number, 0))
        if number > highest:
            step = number - highest
            bits = bits << step & _KEPT if step < NUMBERS_KEPT else 0
            highest = number
        bit = 1 << (highest - number) if highest - number < NUMBERS_KEPT else 0
        if not bit or bits & bit:
            raise NoLeader(
                "This is a copy of a request that arrived, or it was on its way for too long."
            )
        self._seen[sender] = highest, bits | bit
        self._seen.move_to_end(sender)
        if len(self._seen) > SENDERS_MAX:
            self._seen.popitem(last=False)


_KEPT: Final = (1 << NUMBERS_KEPT) - 1


class Receiving:
    """Admits requests of other nodes, each in its turn."""

    def __init__(
        self, secret: str, clock: Clock, *, url: str | None = "", lanes_max: int = LANES_MAX
    ) -> None:
        """Admit the nodes that know the secret. ``url`` is this node's own; None: it has no other nodes."""
        self._secret = secret
        self._url = url
        self._numbers = SeenNumbers()
        self._clock = clock
        self._lanes = ReceivedLanes(lanes_max)
        self._waiting: dict[tuple[Sender, int], asyncio.Event] = {}

    def admit(self, method: str, target: str, headers: Mapping[str, str]) -> NodeHeaders:
        """Return a node's headers, once for each signature.

        Raises:
            Forbidden: no node of this cluster signed the request for this node, or this node has no others.
            NoLeader, BadRequest: see nodeheaders.parse and SeenNumbers.
        """
        if self._url is None:
            raise Forbidden("This node has no other nodes, so it takes no headers of nodes.")
        Envelope(self._url, method, target).check(headers, self._secret)
        told = nodeheaders.parse(headers)
        self._numbers.take(told.sender, told.number)
        return told

    def parse(self, headers: Mapping[str, str], body: bytes) -> tuple[NodeHeaders, float]:
        """Read the headers of a request that was admitted; return them and the deadline in monotonic seconds.

        Raises:
            NoLeader, BadRequest: see nodeheaders.parse.
            Forbidden: the body is another one.
            Overloaded: the deadline has passed.
        """
        node_headers = nodeheaders.parse(headers)
        nodeheaders.check_body(headers, body)
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

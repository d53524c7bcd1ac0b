"""Hand topics over because another node should lead them.

::

    leads ──its turn──▶ accepts no requests ──all accepted requests are answered──▶ released ──▶ settled
                              │                                                        ▲
                              └──time is up: ends anyway; the next claim fences writes in flight

Requests that come meanwhile, and requests that were certainly not stored, are answered with the new leader. Only
some topics are handed over at once. So the pause of each topic is short, and the others work until their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from broker.coordination.tenure import not_leader
from broker.topics.leader import TopicLeader
from broker.topics.surroundings import Surroundings
from broker.topics.topic_state import TopicState

AT_ONCE = 32
HAND_OVER_S = 2.0
"""The longest time to finish the accepted requests."""


class HandingOver:
    """Hands topics over; ``release`` writes the handoff, ``settle`` answers the requests that a leader left."""

    def __init__(
        self,
        around: Surroundings,
        release: Callable[[TopicLeader], Awaitable[None]],
        settle: Callable[[TopicState], None],
    ) -> None:
        """Begin without a hand-over."""
        self._around = around
        self._release = release
        self._settle = settle
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hand_over(self, states: Iterable[TopicState]) -> None:
        """Hand over those of the topics that another node should lead, in bounded time."""
        await asyncio.gather(*(self._hand_over(state) for state in states))

    async def _hand_over(self, state: TopicState) -> None:
        async with self._turns:
            with state.used():
                try:
                    async with asyncio.timeout(HAND_OVER_S):
                        async with state.claiming, state.lock:
                            await self._finish(state)
                except TimeoutError:
                    self._around.metrics.events.add("hand_over_unfinished")
                    self._let_go(state)

    async def _finish(self, state: TopicState) -> None:
        """Accept no more requests, finish the accepted ones, release the log."""
        leader = state.leader
        place = self._around.tenure.place(state.id)
        if leader is None or place.here:
            return
        state.leader, state.former = None, leader
        try:
            await leader.idle()
            await self._release(leader)
        finally:
            leader.end(not_leader(state.id, place))
            self._settle(state)

    def _let_go(self, state: TopicState) -> None:
        """Stop leading a topic whose hand-over did not begin in time: another task holds its locks."""
        place = self._around.tenure.place(state.id)
        if state.leader is not None and not place.here:
            state.leader.end(not_leader(state.id, place))

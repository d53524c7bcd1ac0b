"""Letting topics go in good order because another node should lead them.

::

    leads ──its turn──▶ takes nothing more ──all that was taken is answered──▶ released ──▶ settled
                              │                                                   ▲
                              └──not within the bound: let go, whoever claims it fences what is left

What comes meanwhile, and what was certainly not stored, is told who leads now. Only some topics are in
this state at once: the pause of each is short, and the others go on until it is their turn.
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
"""How long what was taken may need to be finished."""


class HandingOver:
    """Hands topics over; ``release`` writes the handoff, ``settle`` answers what a leader left."""

    def __init__(
        self,
        around: Surroundings,
        release: Callable[[TopicLeader], Awaitable[None]],
        settle: Callable[[TopicState], None],
    ) -> None:
        """Begin with nothing under way."""
        self._around = around
        self._release = release
        self._settle = settle
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hand_over(self, states: Iterable[TopicState]) -> None:
        """Let go of those topics that another node should lead; bounded in time."""
        await asyncio.gather(*(self._hand_over(state) for state in states))

    async def _hand_over(self, state: TopicState) -> None:
        async with self._turns:
            with state.used():
                try:
                    async with asyncio.timeout(HAND_OVER_S):
                        async with state.claiming, state.lock:
                            await self._finish(state)
                except TimeoutError:
                    self._around.metrics.happened("hand_over_unfinished")
                    self._let_go(state)

    async def _finish(self, state: TopicState) -> None:
        """Take nothing more, finish what was taken, release the log."""
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
        """Stop leading a topic whose turn did not come: somebody else is changing its state."""
        place = self._around.tenure.place(state.id)
        if state.leader is not None and not place.here:
            state.leader.end(not_leader(state.id, place))

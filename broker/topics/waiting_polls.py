"""Polls that wait: until a commit shows them something, their time is over, or the node drains.

Whoever waits is woken by the commit, not by a timer, so a poll must wait where commits are heard of. In a
cluster that is the topic's leader: a poll that begins to wait makes this node claim the topic, and one whose
topic moves away ends by NotLeader, which sends it on. Where no leader answers, a poll may wait anywhere: it
then looks into storage now and then.

A poll with a snapshot waits no longer once an open transaction holds it: whatever comes, only a fresh snapshot shows
more. Its consumer hears so at once, takes one, and polls again.

A poll counts against its request's budget only while it waits: one that finds messages at once is never refused
because others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from broker.errors import NoLeader, TopicNotFound
from broker.http.budget import BudgetKind, Hold
from broker.model import Topic
from broker.topics.leaders import Leaders
from broker.topics.pages import NO_PAGE, PollPage
from broker.topics.topic_reader import TopicReading
from broker.topics.topic_state import TopicState

READ_AGAIN_S = 1.0
"""How often a poll that waits where nobody leads looks into storage."""


class WaitingPoll(NamedTuple):
    """One poll that waits. ``deadline`` in monotonic seconds."""

    state: TopicState
    topic: Topic
    reading: TopicReading
    deadline: float
    hold: Hold

    async def read_on(self) -> PollPage:
        """Return the next page, of what was not there before."""
        self.reading.go_on()
        return await self.state.next_page(self.reading)

    @property
    def is_held(self) -> bool:
        """Whether a transaction that the poll's snapshot does not see holds it."""
        return self.reading.blocked_by is not None

    @property
    def is_over(self) -> bool:
        """Whether a later generation of the topic is led here."""
        leader = self.state.leader
        return leader is not None and leader.topic.generation != self.topic.generation


@contextmanager
def counted(hold: Hold) -> Iterator[None]:
    """Count a request among those that wait, once, until this ends.

    Raises:
        Overloaded: too many wait.
    """
    if BudgetKind.WAITING in hold.held:
        yield
        return
    hold.take(BudgetKind.WAITING)
    try:
        yield
    finally:
        hold.give(BudgetKind.WAITING)


class WaitingPolls:
    """The polls of a node that wait."""

    def __init__(self, leaders: Leaders) -> None:
        """Begin with none."""
        self.count = 0
        self._leaders = leaders
        self._around = leaders.around
        self._draining = False

    def drain(self) -> None:
        """Answer those who wait, empty if need be, and let nobody wait any more."""
        self._draining = True
        for state in self._leaders.states.values():
            state.wake()

    async def page(self, wait: WaitingPoll, seen: int, *, anywhere: bool) -> PollPage:
        """Return a page after a change later than the one numbered ``seen``; empty if none came.

        Raises:
            Overloaded: too many wait.
            NotLeader: in a cluster, unless ``anywhere``: another node should lead the topic.
        """
        with counted(wait.hold), self._one_more():
            if not self._around.is_clustered:
                return await self._of_commits(wait, seen)
            if anywhere:
                return await self._of_storage(wait, seen)
            return await self._of_leader(wait, seen)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def _of_commits(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Wait for what is committed here while this node knows the topic as it is."""
        state = wait.state
        while not self._draining and state.is_generation(wait.topic.generation):
            left_s = wait.deadline - self._around.clock.monotonic()
            if left_s <= 0 or not await state.changed(seen, left_s):
                break
            seen = state.changes
            page = await wait.read_on()
            if page.count or wait.is_held:
                return page
        return NO_PAGE

    async def _of_leader(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Wait as the topic's leader, becoming it if need be. Raises NotLeader."""
        page = NO_PAGE
        while not (page.count or wait.is_held or self._draining or wait.is_over):
            if self._around.clock.monotonic() >= wait.deadline:
                break
            if wait.state.leader is not None:
                page = await self._of_commits(wait, seen)
                continue
            try:
                await self._leaders.lead(wait.topic.id, wait.deadline)
            except TopicNotFound:
                break
            except NoLeader:
                return await wait.read_on()
            # Until now others may have written to the log, and nobody heard of it here.
            seen = wait.state.changes
            page = await wait.read_on()
        return page

    async def _of_storage(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Look into storage now and then."""
        while not self._draining:
            left_s = wait.deadline - self._around.clock.monotonic()
            if left_s <= 0:
                break
            await wait.state.changed(seen, min(left_s, READ_AGAIN_S))
            seen = wait.state.changes
            page = await wait.read_on()
            if page.count or wait.is_held:
                return page
        return NO_PAGE

"""Let polls wait: until a commit brings messages, their time is over, or the node drains.

A commit wakes the waiting polls, not a timer. So a poll must wait on a node that learns of commits. In a cluster that
is the topic's leader: a poll that begins to wait makes this node claim the topic. If the topic moves to another node,
the poll ends with NotLeader, and is forwarded. If no leader answers, a poll may wait anywhere: it then reads storage
from time to time.

A poll with a snapshot stops waiting once an open transaction blocks it: only a fresh snapshot can show more. Its
consumer gets the answer at once, takes a fresh snapshot, and polls again.

A poll counts against its request's budget only while it waits. So a poll that finds messages at once is never refused
because of waiting polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from broker.errors import NoLeader, TopicNotFound
from broker.http.budget import BudgetKind, Usage
from broker.model import Topic
from broker.topics.leaders import Leaders
from broker.topics.pages import NO_PAGE, PollPage
from broker.topics.topic_reader import TopicReading
from broker.topics.topic_state import TopicState

READ_AGAIN_S = 1.0
"""The time between reads of storage by a poll that waits without a leader."""


class WaitingPoll(NamedTuple):
    """One waiting poll. ``deadline`` is in monotonic seconds."""

    state: TopicState
    topic: Topic
    reading: TopicReading
    deadline: float
    usage: Usage

    async def read_on(self) -> PollPage:
        """Return the next page, of messages that came since the last one."""
        self.reading.go_on()
        return await self.state.next_page(self.reading)

    @property
    def is_blocked(self) -> bool:
        """Return whether a transaction that is open in the poll's snapshot blocks it."""
        return self.reading.blocked_by is not None

    @property
    def is_over(self) -> bool:
        """Return whether this node leads another generation of the topic."""
        leader = self.state.leader
        return leader is not None and leader.topic.generation != self.topic.generation


@contextmanager
def counted(usage: Usage) -> Iterator[None]:
    """Count a request among the waiting ones during the block, but only once.

    Raises:
        Overloaded: too many requests wait.
    """
    if BudgetKind.WAITING in usage.used:
        yield
        return
    usage.take(BudgetKind.WAITING)
    try:
        yield
    finally:
        usage.give(BudgetKind.WAITING)


class WaitingPolls:
    """The waiting polls of a node."""

    def __init__(self, leaders: Leaders) -> None:
        """Begin without a poll."""
        self.count = 0
        self._leaders = leaders
        self._around = leaders.around
        self._draining = False

    def drain(self) -> None:
        """Answer all waiting polls, if need be without messages, and let no later poll wait."""
        self._draining = True
        for state in self._leaders.states.values():
            state.wake()

    async def page(self, wait: WaitingPoll, seen: int, *, anywhere: bool) -> PollPage:
        """Return a page after a change behind the one numbered ``seen``; an empty page if none came.

        Raises:
            Overloaded: too many polls wait.
            NotLeader: in a cluster, unless ``anywhere``: another node should lead the topic.
        """
        with counted(wait.usage), self._count_waiting():
            if self._around.is_alone:
                return await self._wait_for_commits(wait, seen)
            if anywhere:
                return await self._wait_on_storage(wait, seen)
            return await self._wait_as_leader(wait, seen)

    @contextmanager
    def _count_waiting(self) -> Iterator[None]:
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def _wait_for_commits(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Wait for commits on this node, as long as the topic's known generation stays the same."""
        state = wait.state
        while not self._draining and state.is_generation(wait.topic.generation):
            left_s = wait.deadline - self._around.clock.monotonic()
            if left_s <= 0 or not await state.changed(seen, left_s):
                break
            seen = state.changes
            page = await wait.read_on()
            if page.count or wait.is_blocked:
                return page
        return NO_PAGE

    async def _wait_as_leader(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Wait as the topic's leader, and claim the topic if need be. Raises NotLeader."""
        page = NO_PAGE
        while not (page.count or wait.is_blocked or self._draining or wait.is_over):
            if self._around.clock.monotonic() >= wait.deadline:
                break
            if wait.state.leader is not None:
                page = await self._wait_for_commits(wait, seen)
                continue
            try:
                await self._leaders.lead(wait.topic.id, wait.deadline)
            except TopicNotFound:
                break
            except NoLeader:
                return await wait.read_on()
            # Before the claim another node may have written to the log without a notice to this node.
            seen = wait.state.changes
            page = await wait.read_on()
        return page

    async def _wait_on_storage(self, wait: WaitingPoll, seen: int) -> PollPage:
        """Read storage from time to time."""
        while not self._draining:
            left_s = wait.deadline - self._around.clock.monotonic()
            if left_s <= 0:
                break
            await wait.state.changed(seen, min(left_s, READ_AGAIN_S))
            seen = wait.state.changes
            page = await wait.read_on()
            if page.count or wait.is_blocked:
                return page
        return NO_PAGE

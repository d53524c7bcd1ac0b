"""Claim the topics of a node that is gone, before a request asks for them.

A claim takes some reads and two changes. The first publish after a failure need not wait for them, and every node that
asks soon finds the new epoch. Storage decides each claim as usual: a node that only seemed to be gone claims its topics
again. The claims are bounded, so that a cluster with very many topics is not busy with topics without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, Protocol

from broker import logs
from broker.errors import BrokerError
from broker.model import TopicId
from broker.topics.registry import TopicRegistry

AT_ONCE: Final = 8
CLAIMS_MAX: Final = 1_000
"""The most topics that are claimed after a node is gone. A request claims any other."""

log = logs.get_logger()


class Claiming(Protocol):
    """Leads topics."""

    async def lead(self, topic: TopicId, deadline: float) -> object:
        """Claim a topic, unless this node leads it. Raises BrokerError."""

    def deadline(self) -> float:
        """Return the deadline of a claim that begins now."""


async def claim_topics(
    registry: TopicRegistry, leaders: Claiming, wanted: Callable[[TopicId], bool]
) -> None:
    """Claim the topics that are ``wanted``, some at a time, up to ``CLAIMS_MAX``. Failures are left to requests."""
    topics = _wanted(registry, wanted)
    async with aclosing(topics):
        batch: list[Awaitable[None]] = []
        async for topic in topics:
            batch.append(_claim(leaders, topic))
            if len(batch) == AT_ONCE:
                await asyncio.gather(*batch)
                batch = []
        await asyncio.gather(*batch)


async def _claim(leaders: Claiming, topic: TopicId) -> None:
    with suppress(BrokerError):
        await leaders.lead(topic, leaders.deadline())


async def _wanted(
    registry: TopicRegistry, wanted: Callable[[TopicId], bool]
) -> AsyncGenerator[TopicId, None]:
    count = 0
    try:
        async with aclosing(registry.generations()) as pages:
            async for page in pages:
                for topic, _ in page:
                    if wanted(topic):
                        yield topic
                        count += 1
                    if count == CLAIMS_MAX:
                        return
    except BrokerError as error:
        log.warning("the topics of a node that is gone can't be listed", error=error.message)

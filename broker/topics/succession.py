"""Claim the topics of a node that is gone, before a request asks for them.

A claim takes some reads and two changes. The first publish after a failure need not wait for them, and every node that
asks soon finds the new epoch. Storage decides each claim as usual: a node that only seemed to be gone claims its topics
again. The claims are bounded, so that a cluster with very many topics is not busy with topics without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from broker import logs
from broker.errors import BrokerError
from broker.model import TopicId
from broker.topics.registry import TopicRegistry

AT_ONCE: Final = 8
CLAIMS_MAX: Final = 1_000
"""The most topics that are claimed after a node is gone. A request claims any other."""

log = logs.get_logger()


async def claim_topics(
    registry: TopicRegistry,
    lead: Callable[[TopicId], Awaitable[object]],
    wanted: Callable[[TopicId], bool],
) -> None:
    """Claim the topics that are ``wanted``, some at a time, up to ``CLAIMS_MAX``. Failures are left to requests."""

    async def claim(topic: TopicId) -> None:
        with suppress(BrokerError):
            await lead(topic)

    left = CLAIMS_MAX
    try:
        async with aclosing(registry.generations()) as pages:
            async for page in pages:
                mine = [topic for topic, _ in page if wanted(topic)][:left]
                left -= len(mine)
                for first in range(0, len(mine), AT_ONCE):
                    await asyncio.gather(*map(claim, mine[first : first + AT_ONCE]))
                if not left:
                    return
    except BrokerError as error:
        log.warning("the topics of a node that is gone can't be listed", error=error.message)

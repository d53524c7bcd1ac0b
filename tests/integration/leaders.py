"""Leaders of topics in a cluster of real processes."""

from __future__ import annotations

import asyncio

from broker.client import Client
from broker.local import LocalCluster
from broker.testing.local_state import state_of

DEADLINE_S = 60.0


async def until_led(cluster: LocalCluster, client: Client, topic: str, url: str) -> None:
    """Wait until the node at an address leads a topic. Raises AssertionError with the cluster's state."""
    found = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while found is None or found.url != url or found.epoch is None:
                found = await client.leader(topic)
    except TimeoutError:
        told = f"{found} leads {topic}, not {url}, after {DEADLINE_S:g} s; {state_of(cluster)}"
        raise AssertionError(told) from None

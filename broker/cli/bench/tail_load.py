"""``bench tail``: receive the messages that are published from now on.

A message of ``bench publish`` contains the time of its publish. So its latency is known, from the call of publish to
this process. Between two machines it is as exact as their clocks.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from broker.cli.bench.live import shown
from broker.cli.bench.measure import Measure
from broker.cli.bench.publish_load import ended
from broker.cli.bench.stamp import moment_of, now_us
from broker.client import Client
from broker.model import MessageId, TopicId


async def tail(client: Client, topic: TopicId, seconds: float) -> dict[str, Any]:
    """Receive for ``seconds``, and return the measured figures. An interrupt ends it early.

    Raises:
        RequestError: the broker refuses such polls.
    """
    loop = asyncio.get_running_loop()
    after = (await client.range(topic)).latest
    measure = Measure(loop.time())
    async with shown(measure):
        receiving = asyncio.ensure_future(_receive(client, topic, after, measure))
        is_interrupted = await ended([receiving], seconds)
    asked = {"topic": "/".join(topic), "seconds": seconds}
    return {"asked": asked, **measure.as_json(loop.time()), "interrupted": is_interrupted}


async def _receive(client: Client, topic: TopicId, after: MessageId, measure: Measure) -> None:
    async with aclosing(client.tail_pages(topic, after, inclusive=False)) as pages:
        async for page in pages:
            received_us = now_us()
            for message in page:
                sent_us = moment_of(message.payload)
                latency_us = None if sent_us is None else received_us - sent_us
                measure.add(1, len(message.payload), latency_us)

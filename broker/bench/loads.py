"""The loads of a benchmark: publish to a topic, or receive from one, for a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from broker.bench.measure import Measure, moment_of, now_us, stamped
from broker.client import Client
from broker.errors import UnavailableError
from broker.model import MessageId, TopicId

EVERY_S: Final = 1.0

Show = Callable[[str], object]
"""Shows a line with the figures of the last second."""


def _unseen(_: str) -> None:
    pass


class Load(NamedTuple):
    """A load: requests of ``batch`` messages of ``size`` bytes; ``rate`` in messages/s, or None.

    With a rate, each publish is due at a fixed time, and its latency counts from that time. So if the broker stalls,
    the publishes that are late because of it count as late. Without a rate, a publisher sends its next publish when
    the previous one is acknowledged.
    """

    topic: TopicId
    size: int
    rate: float | None
    seconds: float
    publishers: int
    batch: int


async def publish_load(client: Client, load: Load, show: Show = _unseen) -> dict[str, Any]:
    """Publish for ``load.seconds``, and return the measured figures.

    An interrupt ends it early. A publish that the broker can't take now counts as an error.

    Raises:
        RequestError: the broker refuses such publishes.
        OutcomeUnknown: a message may have been stored or not.
    """
    loop = asyncio.get_running_loop()
    await client.topic(load.topic)  # Check that the topic exists before the clock starts.
    measure = Measure(loop.time())
    due = itertools.count()
    ends_s = loop.time() + load.seconds
    async with _shown(measure, show):
        publishers = [
            asyncio.ensure_future(_publisher(client, load, measure, due, ends_s))
            for _ in range(load.publishers)
        ]
        is_interrupted = await ended(publishers)
    asked = {**load._asdict(), "topic": "/".join(load.topic)}
    return {"asked": asked, **measure.as_json(loop.time()), "interrupted": is_interrupted}


async def _publisher(
    client: Client, load: Load, measure: Measure, due: Iterator[int], ends_s: float
) -> None:
    loop = asyncio.get_running_loop()
    began_s = ends_s - load.seconds
    while True:
        due_s = loop.time() if load.rate is None else began_s + next(due) * load.batch / load.rate
        if max(due_s, loop.time()) >= ends_s:
            return
        if due_s > loop.time():
            await asyncio.sleep(due_s - loop.time())
        payload = stamped(load.size, now_us())
        try:
            await client.publish(load.topic, payload if load.batch == 1 else [payload] * load.batch)
        except UnavailableError as error:
            measure.failed(error)
        else:
            us = round((loop.time() - due_s) * 1e6)
            measure.add(load.batch, load.batch * load.size, us)


async def ended(tasks: Collection[asyncio.Task[None]], within_s: float | None = None) -> bool:
    """Wait until all tasks have ended, one has failed, or ``within_s`` is over; then cancel the tasks.

    Return whether an interrupt ended the wait. Raises the error of the first task that failed.
    """
    is_interrupted = False
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        is_interrupted = True
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return is_interrupted


async def tail_load(
    client: Client, topic: TopicId, seconds: float, show: Show = _unseen
) -> dict[str, Any]:
    """Receive for ``seconds``, and return the measured figures. An interrupt ends it early.

    Raises:
        RequestError: the broker refuses such polls.
    """
    loop = asyncio.get_running_loop()
    after = (await client.range(topic)).latest
    measure = Measure(loop.time())
    async with _shown(measure, show):
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


@asynccontextmanager
async def _shown(measure: Measure, show: Show) -> AsyncIterator[None]:
    """Show a measure's figures every second while the block runs."""
    loop = asyncio.get_running_loop()

    async def report() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            show(measure.look(loop.time()).line)

    reporting = asyncio.ensure_future(report())
    try:
        yield
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting

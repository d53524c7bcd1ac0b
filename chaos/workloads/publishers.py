"""The kinds of publishers without transactions. Each publisher is one process.

==========  =====================================================================================
single      publishes one message at a time; the client may coalesce them
keyed       publishes several messages as one request, in turns with an idempotency key and with a
            producer's number; repeats the request until it is answered, and sometimes once more
forwarded   publishes several messages as one request, always through the same node; some messages
            have a short ``ttl``
staged      stores in several stages and publishes them in another order; repeats the request until
            it is answered
pipelined   uses ``publish_later``: sends a message before the last is answered; the order is promised
together    awaits several single messages at the same time; no order is promised
==========  =====================================================================================

Each publisher works until ``stop`` is set, and then finishes its last request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from broker.client import BrokerError, Published
from broker.client.values import Publishable
from chaos.workloads.client_process import ClientProcess, TopicTarget, asked_of, tell
from chaos.workloads.workload import WorkloadSurroundings

ATTEMPTS_MAX: Final = 20
"""How many times a publisher sends one request at most."""
REPEATED_S: Final = 300.0
"""How long a publisher repeats a request: half of the time that brokers keep a key by default.

A repetition after that time would publish again.
"""
IN_FLIGHT_MAX: Final = 4
"""How many messages ``pipelined`` and ``together`` have in flight at most."""
SHORT_LIVES: Final = 0.2
ONCE_MORE: Final = 0.3

Publisher = Callable[[WorkloadSurroundings, str, TopicTarget, asyncio.Event], Awaitable[None]]


async def single(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish one message after another."""
    async with ClientProcess(around, name) as process:
        while not stop.is_set():
            labels = process.labels(1)
            publishing = process.client.publish(target.id, process.message(labels[0]))
            with suppress(BrokerError):
                await process.publish(target, labels, publishing=publishing)
            await process.pause()


async def keyed(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish with keys and with producer's numbers; repeat each request until it is answered."""
    async with ClientProcess(around, name) as process:
        for number in count():
            if stop.is_set():
                break
            labels = process.labels()
            key = f"{target.name}-{labels[0]}"
            producer = (name, number) if number % 2 else None
            await _until_answered(
                process,
                lambda: process.publish(target, labels, key=key, producer=producer),  # noqa: B023
            )
            await process.pause()


async def staged(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Store in several stages and publish them with one producer's number, until it is answered."""
    async with ClientProcess(around, name) as process:
        for number in count():
            if stop.is_set():
                break
            with suppress(BrokerError):
                filled = [
                    await _filled(process, target) for _ in range(around.chance.randint(1, 3))
                ]
                around.chance.shuffle(filled)
                await _until_answered(
                    process, partial(_publish_stages, process, target, filled, (name, number))
                )
            await process.pause()


async def _filled(process: ClientProcess, target: TopicTarget) -> tuple[str, list[str]]:
    """Fill a stage; return its id and its labels, in order. Raises BrokerError."""
    labels: list[str] = []
    async with process.client.stage(target.id) as stage:
        for number in range(process.around.chance.randint(1, 2)):
            more = process.labels()
            await stage.store(
                [process.message(label) for label in more], idempotency_key=str(number)
            )
            labels += more
    return stage.id, labels


async def _publish_stages(
    process: ClientProcess,
    target: TopicTarget,
    filled: Sequence[tuple[str, list[str]]],
    producer: tuple[str, int],
) -> Published:
    labels = [label for _, part in filled for label in part]
    stages = [stage for stage, _ in filled]
    publishing = process.client.publish_stages(target.id, stages, producer=producer)
    return await process.publish(
        target, labels, key=labels[0], publishing=publishing, of_stages=True
    )


async def _until_answered(
    process: ClientProcess, publish: Callable[[], Awaitable[Published]]
) -> None:
    """Repeat a publish until it is answered; sometimes once more."""
    around = process.around
    until = around.clock.monotonic() + REPEATED_S
    for attempt in range(ATTEMPTS_MAX):
        try:
            await publish()
        except BrokerError as error:
            if not (error.outcome == "unknown" or error.retriable):
                return
        else:
            if attempt or around.chance.random() >= ONCE_MORE:
                return
        await process.pause()
        if around.clock.monotonic() > until:
            return


async def forwarded(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish several messages at a time through one node; some have a short ``ttl``."""
    node = around.chance.choice(list(around.nodes))
    async with ClientProcess(around, name, node=node) as process:
        while not stop.is_set():
            lives_s = around.scale.ttl_s if around.chance.random() < SHORT_LIVES else None
            with suppress(BrokerError):
                await process.publish(target, process.labels(), ttl_s=lives_s)
            await process.pause()


async def pipelined(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Publish in the background, a few messages at a time."""
    async with ClientProcess(around, name) as process:

        async def later(message: Publishable) -> Published:
            return await (await process.client.publish_later(target.id, message))

        while not stop.is_set():
            # The order of one publisher name is promised until an outcome is unknown.
            if "unknown" in await _several(process, target, process.name, later):
                process.live_on()
            await process.pause()


async def together(
    around: WorkloadSurroundings, name: str, target: TopicTarget, stop: asyncio.Event
) -> None:
    """Await several single messages at the same time; the client may send them in one request."""
    async with ClientProcess(around, name) as process:

        async def at_once(message: Publishable) -> Published:
            return await process.client.publish(target.id, message)

        while not stop.is_set():
            # No order is promised, because the client may have to send one of them again.
            await _several(process, target, None, at_once)
            await process.pause()


async def _several(
    process: ClientProcess,
    target: TopicTarget,
    publisher: str | None,
    publish: Callable[[Publishable], Awaitable[Published]],
) -> list[str]:
    """Publish some messages at the same time; return their outcomes."""

    async def one(slot: int) -> str:
        (label,) = process.labels(1)
        asked = asked_of(target, [label])
        asked |= {"publisher": publisher or label, "number": process.count}
        try:
            with process.asking("publish", target.id, asked, f"{process.name}/{slot}") as ending:
                tell(ending, await publish(process.message(label)))
        except BrokerError as error:
            return error.outcome
        return "ok"

    slots = range(process.around.chance.randint(1, IN_FLIGHT_MAX))
    return await asyncio.gather(*map(one, slots))


KINDS: Final[tuple[Publisher, ...]] = (single, keyed, pipelined, forwarded, staged, together)
"""All kinds. A topic's publishers take them in turn."""

"""How applications read, each kind a process of its own; consumers keep a place and go on from it.

==========  =====================================================================================
waiting     pages that wait for a first message, from whoever leads
paging      pages through one node, whoever leads; from the beginning again now and then
tailing     the client's ``tail``, over whatever happens to connections
streaming   the stream of events
timed       from a moment on
browsing    looks at a page, forward or backward, without consuming
==========  =====================================================================================

Readers have no end of their own: they are cancelled. What comes in a stream may have been under way for
long; so a session of a stream, from its beginning to its end, is one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import cycle, islice
from typing import Final, TypeVar

from broker.client import BrokerError, Message, TailOptions
from broker.model import MessageId
from chaos.workloads.client_process import ClientProcess, TopicTarget, note
from chaos.workloads.workload import WorkloadStage

AGAIN: Final = 0.05
"""How often a paging consumer begins anew."""
BACK_MS_MAX: Final = 30_000
SEEN_MAX: Final = 50
SESSION_MAX: Final = 50
"""How many pages or events a session of ``tailing`` or ``streaming`` has at most."""

Kind = TypeVar("Kind")
Reader = Callable[[WorkloadStage, str, TopicTarget], Awaitable[None]]


async def waiting(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Follow by pages that wait."""
    scale = stage.scale
    async with ClientProcess(stage, name) as process:
        place: MessageId | None = None
        while True:
            try:
                page = await process.poll(
                    target,
                    place,
                    cursor=name,
                    limit=scale.page_messages_max,
                    wait_s=scale.wait_s,
                )
            except BrokerError:
                await process.pause()
                continue
            place = page[-1].id if page else place
            await process.pause()


async def paging(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Follow by small pages through one node; each beginning is another consumer."""
    node = stage.chance.choice(list(stage.nodes))
    async with ClientProcess(stage, name, node=node) as process:
        place: MessageId | None = None
        begun = 0
        while True:
            limit = stage.chance.randint(1, stage.scale.page_messages_max)
            with suppress(BrokerError):
                page = await process.poll(target, place, cursor=f"{name}#{begun}", limit=limit)
                place = page[-1].id if page else place
                if not page and stage.chance.random() < AGAIN:
                    place, begun = None, begun + 1
            await process.pause()


async def tailing(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Follow by the client's tail."""
    scale = stage.scale
    options = TailOptions(
        wait_s=scale.wait_s, page_messages_max=scale.page_messages_max, idle_delay_s=scale.pause_s
    )
    async with ClientProcess(stage, name) as process:

        def pages(place: MessageId | None) -> AsyncGenerator[Sequence[Message]]:
            return process.client.tail_pages(target.id, place, inclusive=False, options=options)

        await _follow(process, target, pages)


async def streaming(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Follow by the stream of events."""
    async with ClientProcess(stage, name) as process:

        async def events(place: MessageId | None) -> AsyncGenerator[Sequence[Message]]:
            async with aclosing(process.client.events(target.id, place)) as messages:
                async for message in messages:
                    yield [message]

        await _follow(process, target, events)


async def _follow(
    process: ClientProcess,
    target: TopicTarget,
    pages: Callable[[MessageId | None], AsyncGenerator[Sequence[Message]]],
) -> None:
    """Follow, one session after the other; each is told as one read, of what came before its end."""
    place: MessageId | None = None
    cursor = process.name
    while True:
        seen: list[Message] = []
        asked = process.read_asked(target, place, cursor=cursor)
        broken: BrokerError | None = None
        with suppress(BrokerError):
            async with aclosing(pages(place)) as coming:
                with process.asking("read", target.id, asked) as ending:
                    try:
                        for _ in range(process.stage.chance.randint(1, SESSION_MAX)):
                            seen += await anext(coming)
                    except BrokerError as error:
                        broken = error
                        raise
                    finally:
                        if seen:
                            process.read_told(ending, seen)
        place = seen[-1].id if seen else place
        if seen and broken is not None:
            # What was to come after these was asked for, too.
            asked = process.read_asked(target, place, cursor=cursor)
            note(process.stage.history.invoke(process.name, "read", str(target.id), asked), broken)
        await process.pause()


async def timed(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Read from a moment on: that of a message that was seen, one just beside it, or one lately."""
    chance = stage.chance
    async with ClientProcess(stage, name) as process:
        seen: list[int] = []
        while True:
            if seen and chance.random() < 0.7:
                moment = chance.choice(seen) + chance.choice((-1, 0, 0, 1))
            else:
                moment = max(stage.clock.now_ms() - chance.randint(0, BACK_MS_MAX), 0)
            with suppress(BrokerError):
                limit = chance.randint(1, stage.scale.page_messages_max)
                page = await process.poll(target, moment, limit=limit)
                seen = [*seen, *(message.timestamp_ms for message in page)][-SEEN_MAX:]
            await process.pause(2 * stage.scale.pause_s)


async def browsing(stage: WorkloadStage, name: str, target: TopicTarget) -> None:
    """Look at pages here and there, forward and backward."""
    chance = stage.chance
    async with ClientProcess(stage, name) as process:
        seen: list[MessageId] = []
        while True:
            start = chance.choice(seen) if seen and chance.random() < 0.7 else None
            limit = chance.randint(1, stage.scale.page_messages_max)
            with suppress(BrokerError):
                page = await process.browse(
                    target, start, descending=chance.random() < 0.5, limit=limit
                )
                seen = [*seen, *(entry.id for entry in page.messages)][-SEEN_MAX:]
            await process.pause(2 * stage.scale.pause_s)


KINDS: Final[tuple[Reader, ...]] = (waiting, paging, tailing, streaming, timed, browsing)
"""All kinds; consumer n of a topic is of the nth."""


def some(kinds: Sequence[Kind], count: int) -> enumerate[Kind]:
    """Return so many of the kinds, in turn, numbered."""
    return enumerate(islice(cycle(kinds), count))


async def work(publishers: Sequence[Awaitable[None]], readers: Sequence[Awaitable[None]]) -> None:
    """Let all work until the publishers have ended, then end the readers."""
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(_task(reader)) for reader in readers]
        working = [group.create_task(_task(publisher)) for publisher in publishers]
        await asyncio.wait(working)
        for task in reading:
            task.cancel()


async def _task(work: Awaitable[None]) -> None:
    await work

"""The kinds of readers. Each reader is one process; a consumer keeps its place and goes on from there.

==========  =====================================================================================
waiting     long-polls pages from the leader
paging      polls small pages through one node; sometimes begins again at the start of the topic
tailing     uses the client's ``tail``, also when connections break
streaming   reads the stream of events
timed       reads from a moment on
browsing    browses a page, forward or backward, without consuming
==========  =====================================================================================

Readers do not stop by themselves; the workload cancels them. A message of a stream may have been in flight
for a long time. So the history has one read for a whole session of a stream.
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
from chaos.workloads.workload import WorkloadSurroundings

AGAIN: Final = 0.05
"""The probability that a paging consumer at the end of its topic begins again."""
BACK_MS_MAX: Final = 30_000
SEEN_MAX: Final = 50
SESSION_MAX: Final = 50
"""The largest number of pages or events in a session of ``tailing`` or ``streaming``."""

Kind = TypeVar("Kind")
Reader = Callable[[WorkloadSurroundings, str, TopicTarget], Awaitable[None]]


async def waiting(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Follow a topic by long polls."""
    scale = around.scale
    async with ClientProcess(around, name) as process:
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


async def paging(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Follow a topic by small pages through one node; each beginning counts as a new consumer."""
    node = around.chance.choice(list(around.nodes))
    async with ClientProcess(around, name, node=node) as process:
        place: MessageId | None = None
        begun = 0
        while True:
            limit = around.chance.randint(1, around.scale.page_messages_max)
            with suppress(BrokerError):
                page = await process.poll(target, place, cursor=f"{name}#{begun}", limit=limit)
                place = page[-1].id if page else place
                if not page and around.chance.random() < AGAIN:
                    place, begun = None, begun + 1
            await process.pause()


async def tailing(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Follow a topic by the client's tail."""
    scale = around.scale
    options = TailOptions(
        wait_s=scale.wait_s, page_messages_max=scale.page_messages_max, idle_delay_s=scale.pause_s
    )
    async with ClientProcess(around, name) as process:

        def pages(place: MessageId | None) -> AsyncGenerator[Sequence[Message]]:
            return process.client.tail_pages(target.id, place, inclusive=False, options=options)

        await _follow(process, target, pages)


async def streaming(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Follow a topic by the stream of events."""
    async with ClientProcess(around, name) as process:

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
    """Follow a topic in sessions; the history gets each session as one read, with all its messages."""
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
                        for _ in range(process.around.chance.randint(1, SESSION_MAX)):
                            seen += await anext(coming)
                    except BrokerError as error:
                        broken = error
                        raise
                    finally:
                        if seen:
                            process.read_told(ending, seen)
        place = seen[-1].id if seen else place
        if seen and broken is not None:
            # The session also asked for the messages after these, and that failed.
            asked = process.read_asked(target, place, cursor=cursor)
            note(process.around.history.invoke(process.name, "read", str(target.id), asked), broken)
        await process.pause()


async def timed(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Read from a moment on: that of a seen message, one millisecond beside it, or a recent one."""
    chance = around.chance
    async with ClientProcess(around, name) as process:
        seen: list[int] = []
        while True:
            if seen and chance.random() < 0.7:
                moment = chance.choice(seen) + chance.choice((-1, 0, 0, 1))
            else:
                moment = max(around.clock.now_ms() - chance.randint(0, BACK_MS_MAX), 0)
            with suppress(BrokerError):
                limit = chance.randint(1, around.scale.page_messages_max)
                page = await process.poll(target, moment, limit=limit)
                seen = [*seen, *(message.timestamp_ms for message in page)][-SEEN_MAX:]
            await process.pause(2 * around.scale.pause_s)


async def browsing(around: WorkloadSurroundings, name: str, target: TopicTarget) -> None:
    """Browse pages at random places, forward and backward."""
    chance = around.chance
    async with ClientProcess(around, name) as process:
        seen: list[MessageId] = []
        while True:
            start = chance.choice(seen) if seen and chance.random() < 0.7 else None
            limit = chance.randint(1, around.scale.page_messages_max)
            with suppress(BrokerError):
                page = await process.browse(
                    target, start, descending=chance.random() < 0.5, limit=limit
                )
                seen = [*seen, *(entry.id for entry in page.messages)][-SEEN_MAX:]
            await process.pause(2 * around.scale.pause_s)


KINDS: Final[tuple[Reader, ...]] = (waiting, paging, tailing, streaming, timed, browsing)
"""All kinds. A topic's consumers take them in turn."""


def some(kinds: Sequence[Kind], count: int) -> enumerate[Kind]:
    """Return ``count`` kinds, taken in turn, with their numbers."""
    return enumerate(islice(cycle(kinds), count))


async def work(publishers: Sequence[Awaitable[None]], readers: Sequence[Awaitable[None]]) -> None:
    """Run publishers and readers; when the publishers have ended, cancel the readers."""
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(_task(reader)) for reader in readers]
        working = [group.create_task(_task(publisher)) for publisher in publishers]
        await asyncio.wait(working)
        for task in reading:
            task.cancel()


async def _task(work: Awaitable[None]) -> None:
    await work

"""The final reads: after healing, each topic is read to its end through each node.

A log may still change for a while after healing: requests in flight arrive, leaders change, and one node
may show a shorter prefix than another. So this module reads a node until its end equals the first node's
end, or stays the same. The final read starts only after that::

    settling@N    pages to the end, repeated   ──▶ settled, or the time is over
    final         the first node's             ──▶ the log as it ended
    final@N       each node's                  ──▶ must all show the same

A failed page is retried until the time is over. If it fails even then, the history records that, and the
checkers report a violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from broker.client import BrokerError, Message, Snapshot
from broker.model import MessageId
from broker.places import Place
from chaos.workloads.client_process import ClientProcess, TopicTarget, before, until_answered
from chaos.workloads.workload import WorkloadSurroundings

LOOKS_MIN: Final = 5
"""How many reads in a row must have the same end, if that end differs from the first node's."""
PAGE_MESSAGES: Final = 1000


async def read_everywhere(
    around: WorkloadSurroundings,
    targets: Sequence[TopicTarget],
    *,
    snapshot: Snapshot | None = None,
) -> None:
    """Read topics to their end through every node; with a snapshot, as its transaction sees them."""
    for target in targets:
        end = await _settled(around, target, around.nodes[0], None, snapshot)
        await _final(around, target, "final", around.nodes[0], snapshot)
        for node in around.nodes:
            if node != around.nodes[0]:
                await _settled(around, target, node, end, snapshot)
            await _final(around, target, f"final@{node}", node, snapshot)


async def _settled(
    around: WorkloadSurroundings,
    target: TopicTarget,
    node: str,
    known: MessageId | None,
    snapshot: Snapshot | None,
) -> MessageId | None:
    """Read until the end equals the known end of another node, or stays the same; return the end."""
    deadline = around.clock.monotonic() + around.scale.final_s
    looks_min = 2 if known is None else LOOKS_MIN
    ends: list[MessageId | None] = []
    async with ClientProcess(around, f"settling@{node}", node=node) as process:
        place = None if known is None else before(known)
        while True:
            place = await _read_on(process, target, place, deadline, snapshot) or place
            ends = [*ends, place][-looks_min:]
            stays = len(ends) == looks_min and len(set(ends)) == 1
            if (
                stays
                or (known is not None and place == known)
                or around.clock.monotonic() >= deadline
            ):
                return place
            await around.clock.sleep(around.scale.again_s)


async def _final(
    around: WorkloadSurroundings,
    target: TopicTarget,
    name: str,
    node: str,
    snapshot: Snapshot | None,
) -> None:
    deadline = around.clock.monotonic() + around.scale.final_s
    async with ClientProcess(around, name, node=node) as process:
        await _read_on(process, target, None, deadline, snapshot)


async def _read_on(
    process: ClientProcess,
    target: TopicTarget,
    place: MessageId | None,
    deadline: float,
    snapshot: Snapshot | None,
) -> MessageId | None:
    """Read from a place to the end; return the last id, None if there is no message."""
    last: MessageId | None = None
    while True:
        page = await _page(process, target, last or place, deadline, snapshot)
        if not page:
            return last
        last = page[-1].id


async def _page(
    process: ClientProcess,
    target: TopicTarget,
    place: MessageId | None,
    deadline: float,
    snapshot: Snapshot | None,
) -> list[Message]:
    """Request a page until there is an answer, and return it. All attempts are one call in the history.

    The page is empty at the end of the log, or when the time is over.
    """
    asked = process.read_asked(target, place, snapshot=snapshot) | {"limit": PAGE_MESSAGES}
    with suppress(BrokerError), process.asking("read", target.id, asked) as ending:
        page = await until_answered(
            process.around,
            deadline,
            lambda: process.client.poll(
                target.id, place, inclusive=False, limit=PAGE_MESSAGES, snapshot=snapshot
            ),
        )
        process.read_told(ending, page)
        return page
    return []


async def overview(around: WorkloadSurroundings, target: TopicTarget) -> None:
    """Browse a topic to its end; the history gets all rows, with their pointers."""
    deadline = around.clock.monotonic() + around.scale.final_s
    async with ClientProcess(around, f"overview-{target.name}") as process:
        place: MessageId | None = None
        while around.clock.monotonic() < deadline:
            try:
                page = await process.browse(target, place, limit=PAGE_MESSAGES)
            except BrokerError:
                await around.clock.sleep(around.scale.again_s)
                continue
            if page.next is None:
                return
            place = Place.of(page.next).id

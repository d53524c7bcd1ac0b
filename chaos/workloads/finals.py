"""The last reads: when everything is healed, every topic is read to its end through every node.

A log may still move for a while after healing: what was under way lands, leaders settle, a node shows a
shorter prefix than another. So a node is looked at until it ends where another does, or until its end
stays where it is; only then the look is taken that counts::

    settling@N    pages to the end, again and again   ──▶ settled, or time is over
    final         the first node's                    ──▶ the log as it ended
    final@N       each node's                         ──▶ must all show the same

A page that can't be had is asked for again until time is over; that it can't be read then is in the
history, where it is a violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from broker.client import BrokerError, Message, Snapshot
from broker.model import MessageId
from chaos.workloads.client_process import ClientProcess, TopicTarget, before, note
from chaos.workloads.workload import WorkloadStage

LOOKS_MIN: Final = 5
"""How many looks in a row end at the same place before a node is believed that differs from another."""
PAGE_MESSAGES: Final = 1000


async def read_everywhere(
    stage: WorkloadStage, targets: Sequence[TopicTarget], *, snapshot: Snapshot | None = None
) -> None:
    """Read topics to their ends through every node; with a snapshot, as its transaction sees them."""
    for target in targets:
        end = await _settled(stage, target, stage.nodes[0], None, snapshot)
        await _final(stage, target, "final", stage.nodes[0], snapshot)
        for node in stage.nodes:
            if node != stage.nodes[0]:
                await _settled(stage, target, node, end, snapshot)
            await _final(stage, target, f"final@{node}", node, snapshot)


async def _settled(
    stage: WorkloadStage,
    target: TopicTarget,
    node: str,
    known: MessageId | None,
    snapshot: Snapshot | None,
) -> MessageId | None:
    """Look until the end is where another node has it, or stays where it is; return the end."""
    deadline = stage.clock.monotonic() + stage.scale.final_s
    looks_min = 2 if known is None else LOOKS_MIN
    ends: list[MessageId | None] = []
    async with ClientProcess(stage, f"settling@{node}", node=node) as process:
        place = None if known is None else before(known)
        while True:
            place = await _read_on(process, target, place, deadline, snapshot) or place
            ends = [*ends, place][-looks_min:]
            stays = len(ends) == looks_min and len(set(ends)) == 1
            if stays or place == known is not None or stage.clock.monotonic() >= deadline:
                return place
            await stage.clock.sleep(stage.scale.again_s)


async def _final(
    stage: WorkloadStage, target: TopicTarget, name: str, node: str, snapshot: Snapshot | None
) -> None:
    deadline = stage.clock.monotonic() + stage.scale.final_s
    async with ClientProcess(stage, name, node=node) as process:
        await _read_on(process, target, None, deadline, snapshot)


async def _read_on(
    process: ClientProcess,
    target: TopicTarget,
    place: MessageId | None,
    deadline: float,
    snapshot: Snapshot | None,
) -> MessageId | None:
    """Read from a place to the end; return the last id, None if there was nothing."""
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
    """Return a page, asked for until it is answered: one call in the history, however often.

    There is none at the end of the log, or when time is over.
    """
    stage = process.stage
    asked = process.read_asked(target, place, snapshot=snapshot) | {"limit": PAGE_MESSAGES}
    ending = stage.history.invoke(process.name, "read", str(target.id), asked)
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(BrokerError),
        wait=wait_fixed(stage.scale.again_s),
        stop=lambda _: stage.clock.monotonic() >= deadline,
        sleep=stage.clock.sleep,
        reraise=True,
    )
    try:
        page: list[Message] = await retrying(
            process.client.poll,
            target.id,
            place,
            inclusive=False,
            limit=PAGE_MESSAGES,
            snapshot=snapshot,
        )
    except BrokerError as error:
        note(ending, error)
        return []
    except BaseException as error:
        ending.unknown(type(error).__name__)
        raise
    process.read_told(ending, page)
    return page


async def overview(stage: WorkloadStage, target: TopicTarget) -> None:
    """Browse a topic to its end: all rows, with their pointers."""
    deadline = stage.clock.monotonic() + stage.scale.final_s
    async with ClientProcess(stage, f"overview-{target.name}") as process:
        place: MessageId | None = None
        while stage.clock.monotonic() < deadline:
            try:
                page = await process.browse(target, place, limit=PAGE_MESSAGES)
            except BrokerError:
                await stage.clock.sleep(stage.scale.again_s)
                continue
            if page.next is None:
                return
            place = page.next

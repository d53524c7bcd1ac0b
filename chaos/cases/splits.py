"""Cases of leaders that do not know their successor: cut off from ZooKeeper, or back with a lost lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from broker.client import BrokerError, Published, Snapshot
from broker.wire import avro
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import LeaderSighting, Scene
from chaos.workloads.client_process import TopicTarget
from chaos.workloads.finals import read_everywhere

LATE: Final = 5
_LOST: Final = frozenset({"lost_tail", "lost_middle", "lost_prefix", "two_epochs"})


@asynccontextmanager
async def cut_off(
    scene: Scene, topic: TopicTarget
) -> AsyncIterator[tuple[LeaderSighting, LeaderSighting, int]]:
    """Cut a topic's leader off from ZooKeeper until another node leads, and during the block.

    Yields the old leader, the new leader, and the length of the old leader's log before the cut.
    """
    old = await scene.led(topic)
    place = len(scene.log_of(old.node))
    links = scene.cluster.links
    cut = links.of("node-zookeeper", opener=old.node)
    await links.cut(cut)
    try:
        yield old, await scene.succeeded(topic, old), place
    finally:
        await links.heal(cut)


async def until_fenced(
    scene: Scene, old: LeaderSighting, place: int, *asked: asyncio.Task[Any]
) -> bool:
    """Wait until storage has fenced the old leader, or all requests to it are answered."""

    async def told() -> bool | None:
        tried = scene.tried_in(old.epoch, scene.log_of(old.node, place))
        return True if tried or all(task.done() for task in asked) else None

    await scene.until(told, f"{old.node} was not fenced")
    return scene.tried_in(old.epoch, scene.log_of(old.node, place))


async def split_brain(scene: Scene) -> None:
    """Publish through both nodes while the old leader is cut off from ZooKeeper."""
    topic = await scene.topic()
    async with cut_off(scene, topic) as (old, new, place):
        asked = scene.publishing_at(topic, old.node, "late", LATE)
        tried = await until_fenced(scene, old, place, *asked)
        await scene.publish_at(topic, new.node, "on-the-other-side")
    await asyncio.gather(*asked)
    late = scene.acknowledged_late(old.node, old.epoch)
    scene.fault(
        "both nodes led, and the old leader tried to commit after the new one's first acknowledgement",
        happened=tried or late > 0,
        epochs=[old.epoch, new.epoch],
        acknowledged_by_the_old_leader=late,
    )
    await scene.finish(topic)


SPLIT_BRAIN = Case(
    number=3,
    name="split-brain",
    title="Two nodes lead one topic",
    happens=(
        "Only the leader is cut off from ZooKeeper, where its session ends. Another node claims the log and "
        "acknowledges. Clients publish through both."
    ),
    protects="Both may try, but only one epoch can commit: the compare-and-set of the last page's head decides.",
    mutant="compare",
    without="Both acknowledge, and messages of both are lost.",
    violations=_LOST,
    where=CaseTarget.CLUSTER,
    play=split_brain,
)


async def stale_lock(scene: Scene) -> None:
    """Resume a paused leader without requests, and publish through it when it has a new session."""
    topic = await scene.topic()
    old = await scene.led(topic)
    before = await asyncio.to_thread(scene.session_of, old.node)
    await scene.cluster.pause(old.node)
    try:
        new = await scene.succeeded(topic, old)
    finally:
        await scene.cluster.resume(old.node)

    async def back() -> str | None:
        session = await asyncio.to_thread(scene.session_of, old.node)
        return session if session not in (None, before) else None

    after = await scene.until(back, f"{old.node} has no new session")
    for one in range(LATE):
        await scene.publish_at(topic, old.node, f"at-the-old-leader-{one}")
    scene.fault(
        "the old leader lost its session, another led, and it has a new session",
        happened=before is not None and after != before and new.epoch > old.epoch,
        sessions=[before, after],
        epochs=[old.epoch, new.epoch],
        acknowledged_by_the_old_leader=scene.acknowledged_late(old.node, old.epoch),
    )
    await scene.finish(topic)


STALE_LOCK = Case(
    number=2,
    name="stale-lock",
    title="A lock object still says that it is held, after LOST and CONNECTED",
    happens=(
        "The leader is paused until another node leads, and resumes without requests. When it has contact "
        "again, with a new session, clients publish through it."
    ),
    protects=(
        "Storage confirms the epoch of each write. A lease is only a hint; it belongs to one session, and is "
        "never used after it."
    ),
    mutant="compare",
    without="The old leader acknowledges in its old epoch, after its successor has acknowledged.",
    violations=_LOST,
    where=CaseTarget.CLUSTER,
    play=stale_lock,
)


async def late_rollback(scene: Scene) -> None:
    """Send a rollback of a later publish to a leader that has a successor."""
    topic = await scene.topic()
    async with cut_off(scene, topic) as (old, new, place):
        async with scene.process("transactions", new.node) as process:
            pointer = scene.around.clock.now_ms() * 1_000_000
            undone = await process.publish(topic, process.labels(1), pointer=pointer)
            await process.publish(topic, process.labels(1), pointer=pointer + 1)
        asked = asyncio.create_task(_roll_back(scene, topic, old.node, undone))
        tried = await until_fenced(scene, old, place, asked)
    await asked
    scene.fault(
        "a rollback came to an earlier leader, which had never seen the rolled-back messages",
        happened=tried or asked.result(),
        old_leader_was_fenced_by_it=tried,
    )
    await scene.finish(topic)
    everything = Snapshot(transaction_id=pointer + 2, read_pointer=pointer + 2)
    await read_everywhere(scene.around, [topic], snapshot=everything)


async def _roll_back(scene: Scene, topic: TopicTarget, node: str, published: Published) -> bool:
    """Roll a publish back through one node; return True if that was acknowledged."""
    assert published.rollback is not None
    rows = avro.decode_publish_response(published.rollback)
    asked = {
        "pointer": rows.pointer,
        "first": rows.first.hex(),
        "last": rows.last.hex(),
        "generation": topic.generation,
    }
    async with scene.process("rolls-back", node) as process:
        try:
            with process.asking("rollback", topic.id, asked) as ending:
                await process.client.rollback(topic.id, published)
                ending.ok({})
        except BrokerError:
            return False
        return True


LATE_ROLLBACK = Case(
    number=13,
    name="late-rollback",
    title="A rollback arrives late, by another connection",
    happens=(
        "The leader is cut off from ZooKeeper. Two transactions publish through its successor. The rollback of "
        "the first comes to the old leader, which has never seen its messages."
    ),
    protects=(
        "A rollback names its pointer and its ids, so it can't affect another transaction. The leader answers "
        "it only after a compare-and-set, even if there is no message to roll back."
    ),
    mutant="last-step",
    without="The old leader answers that the rollback is done, and readers see the rolled-back messages.",
    violations=frozenset({"rolled_back", "dirty_read"}),
    where=CaseTarget.CLUSTER,
    play=late_rollback,
)

CASES = (STALE_LOCK, SPLIT_BRAIN, LATE_ROLLBACK)

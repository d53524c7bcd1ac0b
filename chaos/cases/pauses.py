"""The case of a paused leader: after a pause longer than its session, it resumes and believes that it leads.

A paused leader with requests in its sockets resumes and writes before ZooKeeper tells it of its successor.
With a naive lock, two of three attempts got one or two writes through before ZooKeeper's first message. So the
case repeats the pause until a write happens.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.client import Published
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import LeaderSighting, Scene
from chaos.cases.splits import publish_at
from chaos.workloads.client_process import TopicTarget

ROUNDS: Final = 5
LATE: Final = 5


async def zombie(scene: Scene) -> None:
    """Pause a leader, let another node lead, and resume the old leader with requests in its sockets."""
    topic = await scene.topic()
    happened, late = False, 0
    for number in range(ROUNDS):
        old = await scene.led(topic)
        place = len(scene.log_of(old.node))
        await scene.cluster.pause(old.node)
        asked = _late(scene, topic, old, f"late-{number}")
        try:
            new = await scene.succeeded(topic, old, f"successor-{number}")
            asked += _late(scene, topic, old, f"later-{number}")
        finally:
            await scene.cluster.resume(old.node)
        await asyncio.gather(*asked)
        late = scene.acknowledged_late(old.node, old.epoch)
        tried = scene.tried_in(old.epoch, scene.log_of(old.node, place))
        happened = late > 0 or tried
        async with scene.process(f"after-{number}", new.node) as process:
            await scene.attempt(process, topic)
        if happened:
            break
    scene.fault(
        "the old leader tried to commit after the new one's first acknowledgement",
        happened=happened,
        rounds=number + 1,
        acknowledged_by_the_old_leader=late,
    )
    await scene.finish(topic)


def _late(
    scene: Scene, topic: TopicTarget, old: LeaderSighting, name: str
) -> list[asyncio.Task[Published | None]]:
    """Start publishes through a paused node."""
    return [
        asyncio.create_task(publish_at(scene, topic, old.node, f"{name}-{one}"))
        for one in range(LATE)
    ]


ZOMBIE_LEADER = Case(
    number=1,
    name="zombie-leader",
    title="A leader resumes after a long pause, and goes on writing",
    happens=(
        "The leader is paused (SIGSTOP) until another node has acknowledged, and resumes with requests in "
        "its sockets."
    ),
    protects=(
        "The old leader acknowledges only after its compare-and-set, which fails because its successor has "
        "changed the head."
    ),
    mutant="compare",
    without="The old leader acknowledges although it has a successor, and messages of both are lost.",
    violations=frozenset({"lost_tail", "lost_middle", "lost_prefix", "two_epochs"}),
    where=CaseTarget.CLUSTER,
    play=zombie,
)

CASES = (ZOMBIE_LEADER,)

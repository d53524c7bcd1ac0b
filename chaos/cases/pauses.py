"""The case of a paused leader: after a pause longer than its session, it resumes and believes that it leads.

A paused leader with requests in its sockets resumes and writes before ZooKeeper tells it of its successor.
With a naive lock, two of three attempts got one or two writes through before ZooKeeper's first message. So the
case repeats the pause until a write happens.
"""

from __future__ import annotations

import asyncio
from typing import Final

from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene

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
        asked = scene.publishing_at(topic, old.node, f"late-{number}", LATE)
        try:
            new = await scene.succeeded(topic, old, f"successor-{number}")
            asked += scene.publishing_at(topic, old.node, f"later-{number}", LATE)
        finally:
            await scene.cluster.resume(old.node)
        await asyncio.gather(*asked)
        late = scene.acknowledged_late(old.node, old.epoch)
        tried = scene.tried_in(old.epoch, scene.log_of(old.node, place))
        happened = late > 0 or tried
        await scene.publish_at(topic, new.node, f"after-{number}")
        if happened:
            break
    scene.fault(
        "the old leader tried to commit after the new one's first acknowledgement",
        happened=happened,
        rounds=number + 1,
        acknowledged_by_the_old_leader=late,
    )
    await scene.finish(topic)


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

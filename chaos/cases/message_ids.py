"""Cases of message ids: a new leader's clock is behind, and a millisecond has no more ids."""

from __future__ import annotations

from typing import Final

from broker.model import timestamp_of
from broker.topics.log_keys import LogKeys
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene
from chaos.cases.inside import final, keepers

BEHIND_S: Final = 10
NOW_MS: Final = 1_600_000_000_000
INSTANCE: Final = 7
MESSAGES: Final = 10_000


async def behind(scene: Scene) -> None:
    """Set all clocks but the leader's ten seconds back, and kill the leader."""
    topic = await scene.topic()
    old = await scene.led(topic)
    for node in scene.cluster.nodes:
        if node != old.node:
            await scene.cluster.kill(node)
            scene.cluster.clocks.set(node, -BEHIND_S)
            await scene.cluster.start(node)
    async with scene.process("before", old.node) as process:
        await scene.publish(process, topic, 20)
        last = scene.by((await scene.publish(process, topic))[0])
    if last.node != old.node:
        scene.fault("the next leader's clock was behind", happened=False, led=[old, last])
        return
    await scene.cluster.kill(old.node)
    new = await scene.succeeded(topic, last)
    async with scene.process("after", new.node) as process:
        await scene.publish(process, topic, 20)
    scene.fault(
        "the next leader's clock was behind the earlier leader's",
        happened=scene.cluster.clocks.offset_s(new.node) == -BEHIND_S,
        led=[old, new],
        behind_s=BEHIND_S,
    )
    await scene.finish(topic)


CLOCK_BEHIND = Case(
    number=9,
    name="clock-behind",
    title="A new leader's clock is behind the old one's",
    happens=(
        "The leader is killed. The other nodes' clocks are 10 s behind its own (libfaketime). The case allows "
        "this difference; by default, a node whose clock differs by more than 2 s from storage leads no topic."
    ),
    protects="The first id of a claim is above the log's pointer, for any time of the clock.",
    mutant="clock-ids",
    without="The new leader's ids are below the old leader's, and reads do not show its acknowledged messages.",
    violations=frozenset({"reordered", "lost_prefix", "lost_tail", "lost_middle", "id_reused"}),
    where=CaseTarget.CLUSTER,
    settings={"cluster.clock_skew_ms_max": 60_000},
    sets_clocks=True,
    play=behind,
)


async def full(scene: Scene) -> None:
    """Take more ids at once than a millisecond has, and then one more in the same millisecond."""
    (a,) = await keepers(scene, "a")
    ids = LogKeys(first_ms=NOW_MS, monotonic_ms=0, lead_ms_max=1000, instance=INSTANCE)
    taken = ids.take(MESSAGES, NOW_MS, 0)
    many = await a.publish_at(taken)
    one = await a.publish_at(ids.take(1, NOW_MS, 0))
    spilled_ms = timestamp_of(taken[-1]) - NOW_MS
    scene.fault(
        "a request needed more ids than a millisecond has, and another came in the same millisecond",
        happened=spilled_ms > 0 and many,
        messages=MESSAGES,
        spilled_ms=spilled_ms,
        next_acknowledged=one,
    )
    await final(a)


FULL_MILLISECOND = Case(
    number=11,
    name="full-millisecond",
    title="A millisecond has no more ids",
    happens=(
        "A node has 256 ids in a millisecond. It gets a request of 10,000 messages, and another request in "
        "the same millisecond. The case is played on a node's ids and log in this process, where the clock "
        "can stand still."
    ),
    protects="Ids go on into the next milliseconds, and the next batch begins after the last id of this one.",
    mutant="clock-ids",
    without="The next batch begins at the clock's time, and uses ids a second time.",
    violations=frozenset(
        {"id_reused", "lost_tail", "lost_middle", "lost_prefix", "reordered", "torn"}
    ),
    where=CaseTarget.INSIDE,
    play=full,
)

CASES = (CLOCK_BEHIND, FULL_MILLISECOND)

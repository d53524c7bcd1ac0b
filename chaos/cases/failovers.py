"""Cases of failover: requests in flight when a leader dies, a missing ZooKeeper, a doubled instance id."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.client import BrokerError
from broker.clock import SystemClock
from broker.config.text_forms import parse_address
from broker.local import ProcessKind
from broker.local.servers import ServerFailed
from broker.model import TopicId
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.keys import LogId
from broker.storage.log import Logs
from chaos.bare import rows_of
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import LeaderSighting, Scene
from chaos.links import CLIENT, Link
from chaos.nemeses.membership import INSTANCE
from chaos.workloads.client_process import TopicTarget

OUTAGE_S: Final = 20.0
CUT_S: Final = 4.0
"""How long a client waits for an answer that is cut off."""
ASK_S: Final = 5.0
"""How long a publish may take while ZooKeeper is down."""
LOOKS_S: Final = 40.0
"""Four times the interval at which a node checks the record of its instance id."""
READ_FIRST: Final = 3
BEFORE: Final = 10


async def retried(scene: Scene) -> None:
    """Cut an acknowledgement off, kill its leader, and repeat the request with the same key elsewhere."""
    topic = await scene.topic()
    old = await scene.led(topic)
    links = scene.cluster.links
    answers = [Link(CLIENT, old.node)]
    async with scene.process("first", old.node, deadline_s=CUT_S) as process:
        labels = process.labels(2)
        await links.cut(answers, "down")
        try:
            await process.publish(topic, labels, key="the-same")
            unknown = False
        except BrokerError as error:
            unknown = error.outcome == "unknown"
    async with scene.process("looks", scene.another(old.node)) as process:
        stored = any(process.label(one.payload) in labels for one in await process.poll(topic))
    await scene.cluster.kill(old.node)
    await links.heal(answers, "down")
    new = await scene.succeeded(topic, old)
    async with scene.process("again", new.node) as process:
        again = await process.publish(topic, labels, key="the-same")
    scene.fault(
        "an acknowledgement was cut off, its leader was killed, and the request was repeated elsewhere",
        happened=unknown and stored,
        epochs=[old.epoch, new.epoch],
        replayed=again.replayed,
    )
    await scene.finish(topic)


RETRIED_PUBLISH = Case(
    number=12,
    name="retried-publish",
    title="A publish is repeated after a time-out",
    happens=(
        "The answers of the leader to its clients are cut off. So a publish with an idempotency key has an "
        "unknown outcome, though it was stored. The leader is killed (kill -9), and the same request goes to "
        "the next leader."
    ),
    protects="The leader stores the key with the messages, in the same change. Every later leader looks it up.",
    mutant="dedupe",
    without="The messages are stored twice.",
    violations=frozenset({"duplicated"}),
    where=CaseTarget.CLUSTER,
    play=retried,
)


async def killed_in_delivery(scene: Scene) -> None:
    """Kill a leader whose append is stored but not acknowledged, while a consumer lags."""
    topic = await scene.topic()
    old = await scene.led(topic)
    beside = scene.another(old.node)
    links = scene.cluster.links
    storage = links.of("node-hbase", opener=old.node)
    async with scene.process("publisher", old.node) as process:
        await scene.publish(process, topic, BEFORE)
    before = await _stored(scene, topic)
    async with scene.process("consumer", beside) as consumer:
        page = await consumer.poll(topic, cursor="consumer", limit=READ_FIRST)
        await links.cut(storage, "down")
        asked = asyncio.create_task(scene.publish_at(topic, old.node, "unacknowledged"))

        async def stored() -> int | None:
            messages = await _stored(scene, topic)
            return messages if messages > before else None

        messages = await scene.until(stored, "no message was stored")
        await scene.cluster.kill(old.node)
        await links.heal(storage, "down")
        await asyncio.gather(asked)
        new = await scene.succeeded(topic, old)
        await consumer.poll(topic, page[-1].id, cursor="consumer")
    scene.fault(
        "the leader was killed (kill -9) before it acknowledged, and a consumer read on",
        happened=asked.result() is None,
        unacknowledged=messages - before,
        epochs=[old.epoch, new.epoch],
    )
    await scene.finish(topic)


async def _stored(scene: Scene, topic: TopicTarget) -> int:
    """Return the number of a topic's messages in HBase, read past the proxies."""
    told = tomllib.loads(await asyncio.to_thread(_storage, scene))["hbase"]
    gateways = Gateways([GatewayAddress(*parse_address(told["hbase_gateways"][0]))])
    table = HBaseTable(gateways, Schema(prefix=told["hbase_table_prefix"]))
    try:
        log = LogId(TopicId("default", topic.name), topic.generation)
        return len(await rows_of(Logs(table, SystemClock()), log))
    finally:
        await table.close()


def _storage(scene: Scene) -> str:
    """Return the storage configuration of the launcher, which goes past the proxies."""
    return (scene.cluster.folder / "storage.toml").read_text()


CONSUMER_SKIP = Case(
    number=17,
    name="consumer-skip",
    title="A consumer skips messages when its leader dies",
    happens=(
        "The answers of storage to the leader are cut off, so an append is stored but not acknowledged. The "
        "leader is killed (kill -9). A consumer that lags reads on through another node, from the next leader."
    ),
    protects="A leader's cache begins at its claim. It reads earlier messages from storage.",
    mutant="cache-complete",
    without="The consumer skips the messages that the earlier leader had stored.",
    violations=frozenset({"skipped", "changed_read", "lost_middle", "lost_prefix"}),
    where=CaseTarget.CLUSTER,
    play=killed_in_delivery,
)


async def outage(scene: Scene) -> None:
    """Kill ZooKeeper for 20 s, and publish through every node meanwhile."""
    topic = await scene.topic()
    before = await scene.led(topic)
    sessions = await scene.sessions()
    (zookeeper,) = scene.cluster.processes(ProcessKind.ZOOKEEPER)
    await scene.cluster.kill(zookeeper)
    began, refused, acknowledged = time.monotonic(), 0, 0
    while time.monotonic() - began < OUTAGE_S:
        for node in scene.cluster.nodes:
            name = f"meanwhile-{acknowledged + refused}"
            done = await scene.publish_at(topic, node, name, deadline_s=ASK_S)
            acknowledged += done is not None
            refused += done is None
            await asyncio.sleep(0.1)
    was_gone = not scene.cluster.is_running(zookeeper)
    done = await scene.publish_at(topic, before.node, "at-last", deadline_s=ASK_S)
    during = None if done is None else scene.by(done)
    await scene.cluster.start(zookeeper)
    after = await _in_contact(scene)
    led = await scene.led(topic)
    scene.fault(
        "ZooKeeper was down for 20 s",
        happened=was_gone,
        acknowledged=acknowledged,
        refused=refused,
        sessions_kept=sum(sessions[node] == after[node] for node in sessions),
        led=[before, during, led],
    )
    if during != before:
        scene.violation("leader_moved", f"{before} led, but during the outage {during}")
    if sessions[before.node] == after[before.node] and led != before:
        scene.violation("leader_moved", f"{before} led and kept its session, but now {led} leads")
    if refused:
        scene.violation(
            "unavailable", f"{refused} publishes were not acknowledged during the outage"
        )
    await scene.finish(topic)


async def _in_contact(
    scene: Scene, former: Mapping[str, str | None] = MappingProxyType({})
) -> dict[str, str]:
    """Wait until every node has contact with ZooKeeper, in a session other than its ``former`` one."""

    async def sessions() -> dict[str, str] | None:
        told = await scene.sessions()
        known = {
            node: session
            for node, session in told.items()
            if session is not None and session != former.get(node)
        }
        return known if len(known) == len(told) else None

    return await scene.until(sessions, "no contact with ZooKeeper")


ZOOKEEPER_OUTAGE = Case(
    number=22,
    name="zookeeper-outage",
    title="All leaders step down when ZooKeeper is down for a moment",
    happens="The nodes' ZooKeeper is down for 20 s, five session time-outs, during publishes through every node.",
    protects="A leader goes on: storage decides who leads, and only failover waits for ZooKeeper.",
    mutant="suspended",
    without="No node leads until ZooKeeper is back.",
    violations=frozenset({"unavailable", "leader_moved"}),
    where=CaseTarget.CLUSTER,
    play=outage,
)


async def wiped(scene: Scene) -> None:
    """Let ZooKeeper lose its data, and then kill the leader."""
    topic = await scene.topic()
    old = await scene.led(topic)
    sessions = await scene.sessions()
    await scene.cluster.wipe_zookeeper()
    after = await _in_contact(scene, former=sessions)
    kept = await scene.until_acknowledged(topic, "after-the-loss")
    await scene.cluster.kill(kept.node)
    new = await scene.until_acknowledged(
        topic, "after-the-kill", scene.another(kept.node), lambda leader: leader.node != kept.node
    )
    scene.fault(
        "ZooKeeper lost its data and all sessions",
        happened=not set(sessions.values()) & set(after.values()),
        led=[old, kept, new],
    )
    if not old.epoch <= kept.epoch < new.epoch:
        scene.violation("epoch_fell", f"the epochs were {old.epoch}, {kept.epoch}, {new.epoch}")
    await scene.finish(topic)


ZOOKEEPER_WIPED = Case(
    number=16,
    name="zookeeper-wiped",
    title="Ids and epochs start again when ZooKeeper has lost its data",
    happens="The nodes' ZooKeeper is killed, loses its data, and starts again. Then the leader is killed.",
    protects="Epochs and ids come only from the log in storage, never from ZooKeeper's numbers.",
    mutant="zookeeper-epochs",
    without="The epoch falls, and the late requests of an older leader have a higher epoch.",
    violations=frozenset({"epoch_fell", "two_epochs"}),
    where=CaseTarget.CLUSTER,
    play=wiped,
)


async def twin(scene: Scene) -> None:
    """Start a node with the leader's instance id: first beside it, then while it is cut off."""
    topic = await scene.topic()
    led = await scene.led(topic)
    view = await asyncio.to_thread(scene.cluster.own_view, led.node)
    assert view is not None, f"{led.node} does not tell its status"
    number = str(view["node"])
    beside = await _started(scene, number)
    if beside is not None:
        scene.violation("same_instance_id", f"two nodes serve with the instance id {number}")
        await scene.cluster.stop(beside)
    links = scene.cluster.links
    cut = links.of("node-zookeeper", opener=led.node)
    await links.cut(cut)
    try:
        spare = await scene.until(
            lambda: _started(scene, number), "the instance id stays taken", 1.0
        )
        stopped = await _stopped(scene, led)
    finally:
        await links.heal(cut)
    scene.fault(
        "a node started with the instance id of a living node, and of a node that is cut off",
        happened=spare is not None,
        refused_beside_the_living=beside is None,
        stopped=stopped,
    )
    if not stopped:
        scene.violation(
            "same_instance_id", f"{led.node} and {spare} go on, both with the instance id {number}"
        )
    await scene.cluster.stop(spare)
    await scene.until_acknowledged(topic, "after")
    await scene.finish(topic)


async def _started(scene: Scene, number: str) -> str | None:
    """Start the spare node with an instance id; return None if it refuses."""
    try:
        return await scene.cluster.start_spare({INSTANCE: number})
    except ServerFailed:
        return None


async def _stopped(scene: Scene, led: LeaderSighting) -> bool:
    """Wait for a node to end by itself; return False if it goes on for ``LOOKS_S``."""

    async def ended() -> bool | None:
        return None if scene.cluster.is_running(led.node) else True

    try:
        return await scene.until(ended, f"{led.node} goes on", 0.5, wait_s=LOOKS_S)
    except TimeoutError:
        return False


TWIN_INSTANCE = Case(
    number=23,
    name="twin-instance",
    title="Two nodes are configured with the same instance id",
    happens=(
        "A spare node is started with the leader's instance id: first beside the leader, then while the leader "
        "is cut off from ZooKeeper, where the id has no owner any more."
    ),
    protects=(
        "A node claims its instance id in ZooKeeper, and in storage with its incarnation. An incarnation that "
        "finds another one in storage stops."
    ),
    mutant="id-claim",
    without="Both go on with one instance id, and can write the same keys.",
    violations=frozenset({"same_instance_id"}),
    where=CaseTarget.CLUSTER,
    play=twin,
)

CASES = (RETRIED_PUBLISH, CONSUMER_SKIP, ZOOKEEPER_OUTAGE, ZOOKEEPER_WIPED, TWIN_INSTANCE)

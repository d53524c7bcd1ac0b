"""A node compares its clock with those of storage servers and of other nodes, before it claims, reads and sweeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

import pytest

from broker.clock import JUMP_BELIEVED_AFTER_MS, JUMP_MS_MIN
from broker.errors import ClockSkew, OutcomeUnknown, Unavailable
from broker.model import TopicId
from broker.storage.keys import topic_prefix
from broker.storage.table import Space
from broker.testing.virtual_time import pass_time
from broker.topics.browse import BrowseQuery
from broker.topics.clock_comparison import COMPARED_S, PREFIX, SHARP_MS
from broker.topics.topic_claims import SKEWED_S
from tests.kit.bench import Gate, Hook, failing
from tests.kit.topic_nodes import TopicCluster, TopicNode, on_nodes

TOPIC, OTHER = TopicId("ns", "t"), TopicId("ns", "other")
SERVERS = 997
"""So many that each key has a storage server of its own."""
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def set_server_clock(cluster: TopicCluster, key: bytes, off_ms: int) -> None:
    """Set the clock of one storage server wrong: the server that has the topic or record of this key."""
    clocks = [0] * SERVERS
    clocks[crc32(key) % SERVERS] = off_ms
    cluster.sim.table.clocks_ms = clocks


def record_of(node: TopicNode) -> bytes:
    """Return the key of the record by which a node compares its clock."""
    return PREFIX + b"%03d" % node.instance


async def read_by(node: TopicNode) -> int:
    """Return how many messages a node shows. It need not lead the topic."""
    return len(await node.poll(TOPIC, anywhere=True))


async def browsed_by(node: TopicNode) -> int:
    return len((await node.run(node.topics.browse(TOPIC, BrowseQuery()))).entries)


# Claims.


@on_nodes(1)
async def test_a_server_whose_clock_is_off_costs_a_lone_node_its_topic_alone(
    cluster: TopicCluster,
) -> None:
    (node,) = cluster.nodes
    for topic in (TOPIC, OTHER):
        await cluster.create(topic)
    set_server_clock(cluster, topic_prefix(TOPIC), 3000)
    for _ in range(3):
        with pytest.raises(ClockSkew, match="does not lead this topic"):
            await node.publish(TOPIC, b"refused")
        await pass_time(SKEWED_S)
    await node.publish(OTHER, b"stored")
    assert (await node.sweep()).problem is None
    assert not node.leads(TOPIC)
    assert not node.machine.is_skewed, "a second server finds the node's clock right"
    set_server_clock(cluster, topic_prefix(TOPIC), 0)
    await node.publish(TOPIC, b"stored")


@on_nodes(1)
async def test_a_topic_is_not_claimed_again_and_again_while_its_server_is_off(
    cluster: TopicCluster,
) -> None:
    """Each claim writes to the topic's log."""
    (node,) = cluster.nodes
    await cluster.create(TOPIC)
    set_server_clock(cluster, topic_prefix(TOPIC), 3000)
    with pytest.raises(ClockSkew):
        await node.publish(TOPIC, b"m")
    claims = node.table.calls.count("head")
    for _ in range(100):
        with pytest.raises(ClockSkew) as refused:
            await node.publish(TOPIC, b"m")
        assert 0 < (refused.value.retry_after_s or 0) <= SKEWED_S
    assert node.table.calls.count("head") == claims


@pytest.mark.parametrize("off_ms", [-5000, 5000])
@on_nodes(3)
async def test_a_node_whose_clock_is_off_by_two_witnesses_leads_nothing(
    cluster: TopicCluster, off_ms: int
) -> None:
    """The topic's server and the nodes say so, though the server of the node's record is off as much as the node."""
    await cluster.create(TOPIC)
    (home,) = (node for node in cluster.nodes if node.tenure.place(TOPIC).here)
    await home.step_clock(off_ms)
    set_server_clock(cluster, record_of(home), off_ms)
    with pytest.raises(ClockSkew, match="leads nothing"):
        await home.publish(TOPIC, b"m")
    assert [node for node in cluster.nodes if node.machine.is_skewed] == [home]
    assert not home.leads(TOPIC)


@on_nodes(1)
async def test_a_small_difference_of_clocks_is_allowed(cluster: TopicCluster) -> None:
    (node,) = cluster.nodes
    await cluster.create(TOPIC)
    set_server_clock(cluster, topic_prefix(TOPIC), 1500)
    await node.publish(TOPIC, b"m")
    assert not node.machine.is_skewed


# Reads.


@on_nodes(2)
async def test_nodes_whose_clocks_agree_read_though_a_servers_clock_is_off(
    cluster: TopicCluster,
) -> None:
    _, reader = await cluster.led(TOPIC)
    set_server_clock(cluster, record_of(reader), 3000)
    assert await read_by(reader) == 1
    await reader.step_clock(HOUR_MS)
    with pytest.raises(ClockSkew):
        await read_by(reader)
    assert reader.machine.is_skewed, "the other node finds it off, too"


@pytest.mark.parametrize("read", [read_by, browsed_by])
@on_nodes(2)
async def test_a_node_that_does_not_lead_reads_only_if_its_clock_is_right(
    cluster: TopicCluster, read: Callable[[TopicNode], Awaitable[int]]
) -> None:
    """By a clock that is ahead it would omit live messages, and the consumer would go on behind them."""
    home, reader = await cluster.led(TOPIC)
    for one, two in ((home, reader), (reader, home)):
        cluster.sim.network.cut(one.machine.name, two.machine.name)
    await pass_time(COMPARED_S)
    set_server_clock(cluster, record_of(reader), -3000)
    with pytest.raises(ClockSkew):
        await read(reader)
    assert not reader.machine.is_skewed, "the storage's clock may be the wrong one"
    set_server_clock(cluster, record_of(reader), 0)
    assert await read(reader) == 1
    compared = reader.table.calls.count("record")
    assert await read(reader) == 1
    assert reader.table.calls.count("record") == compared, "one comparison counts for a while"
    await reader.step_clock(HOUR_MS)
    with pytest.raises(ClockSkew):
        await read(reader)
    assert reader.machine.is_skewed, "its clock has jumped since it was right"


@on_nodes(1)
async def test_a_leader_whose_clock_jumps_reads_only_if_it_is_right(cluster: TopicCluster) -> None:
    node, _ = await cluster.led(TOPIC)
    compared = node.table.calls.count("record")
    assert await node.poll(TOPIC)
    assert node.table.calls.count("record") == compared, "a claim compares"
    await node.step_clock(2 * JUMP_MS_MIN)
    assert await node.poll(TOPIC)
    assert node.table.calls.count("record") == compared + 1
    await node.step_clock(HOUR_MS)
    with pytest.raises(ClockSkew):
        await node.poll(TOPIC)
    assert node.machine.is_skewed


@on_nodes(2)
async def test_a_comparison_that_took_long_or_met_a_jump_proves_nothing(
    cluster: TopicCluster,
) -> None:
    _, reader = await cluster.led(TOPIC)

    async def late(real: Hook, *arguments: Any, **named: Any) -> Any:
        await pass_time(SHARP_MS / 1000 + 1)
        return await real(*arguments, **named)

    async def at_a_jump(real: Hook, *arguments: Any, **named: Any) -> Any:
        done = await real(*arguments, **named)
        await pass_time(0.5)
        assert reader.now_ms() < before_ms, "the node follows the jump now"
        return done

    for hook in (late, failing(OutcomeUnknown("lost"))):
        reader.table.on("record", hook)
        with pytest.raises(Unavailable):
            await read_by(reader)
    reader.now_ms()
    reader.machine.wall.step(-2 * JUMP_MS_MIN)
    reader.now_ms()
    await pass_time(JUMP_BELIEVED_AFTER_MS / 1000 - 0.3)
    before_ms = reader.now_ms()
    reader.table.on("record", at_a_jump)
    with pytest.raises(Unavailable):
        await read_by(reader)
    assert await read_by(reader) == 1


@on_nodes(2)
async def test_readers_share_a_comparison_and_its_failure(cluster: TopicCluster) -> None:
    _, reader = await cluster.led(TOPIC)
    gate = Gate()

    async def fails(real: Hook, *arguments: Any, **named: Any) -> Any:
        await gate.before(real, *arguments, **named)
        raise OutcomeUnknown("lost")

    reader.table.calls.clear()
    reader.table.on("record", fails)
    reads = [asyncio.ensure_future(read_by(reader)) for _ in range(10)]
    await gate.reached.wait()
    gate.open()
    ends = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(end) for end in ends] == [Unavailable] * 10
    assert reader.table.calls.count("record") == 1


# Sweeps.


@on_nodes(1)
async def test_a_clock_that_becomes_right_during_a_sweep_removes_no_live_message(
    cluster: TopicCluster,
) -> None:
    node, _ = await cluster.led(TOPIC)
    await node.step_clock(YEAR_MS)
    node.machine.wall.step(-YEAR_MS)
    wrong_ms = node.now_ms()
    await pass_time(JUMP_BELIEVED_AFTER_MS / 1000 - 0.3)

    async def slow(real: Hook, space: Space, *arguments: Any, **named: Any) -> Any:
        found = await real(space, *arguments, **named)
        if space is not Space.RECORDS:
            node.table.forget_hooks()
            await pass_time(0.5)
            assert node.now_ms() < wrong_ms, "the clock is right now"
        return found

    node.table.on("scan", *[slow] * 20)
    await node.sweep()
    assert await node.payloads(TOPIC) == [b"first"]


@pytest.mark.parametrize("ahead_ms", [0, 60_000])
@on_nodes(1)
async def test_a_clock_that_went_wrong_since_the_claims_sweeps_nothing(
    cluster: TopicCluster, ahead_ms: int
) -> None:
    """A claim compares the clocks, but the last claim may be long ago. So each sweep compares them, too."""
    (node,) = cluster.nodes
    for topic in (TOPIC, OTHER):
        await cluster.create(topic, ttl_s=1)
        await cluster.publish(topic, b"old")
        await cluster.publish(topic, b"new")
    await pass_time(2 * ahead_ms / 1000 + 10)
    cluster.sim.table.clocks_ms = (-ahead_ms,)
    report = await node.sweep()
    assert (report.rows, report.skipped) == ((0, 2) if ahead_ms else (4, 0))
    assert node.machine.is_skewed is bool(ahead_ms)


@on_nodes(1)
async def test_a_topic_whose_server_shows_no_time_is_not_swept(cluster: TopicCluster) -> None:
    """The server's clock is behind the head of the topic, and the time of a cell never falls."""
    (node,) = cluster.nodes
    await cluster.create(TOPIC, ttl_s=1)
    for payload in (b"old", b"new"):
        await cluster.publish(TOPIC, payload)
    await pass_time(10)
    cluster.sim.table.clocks_ms = (-20_000,)
    report = await node.sweep()
    assert (report.rows, report.skipped) == (0, 1)
    await pass_time(11)
    cluster.sim.table.clocks_ms = (0,)
    assert (await node.sweep()).rows == 2

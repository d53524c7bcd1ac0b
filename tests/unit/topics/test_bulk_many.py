"""Bulk reads by nodes that do not lead: a stale read of storage never counts as the whole range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.errors import ClockSkew, Unavailable
from broker.model import LOG_KEY_MIN, LogKey, MessageId, TopicId
from broker.storage.columns import last_of
from broker.storage.table import Cell, Cells, Space
from broker.testing.mutants import in_force
from broker.topics.payload_reader import STALE_READS_MAX
from broker.topics.ranges import RangeQuery
from tests.kit.topic_nodes import TopicCluster, TopicNode, on_nodes
from tests.unit.topics.test_bulk import read

TOPIC = TopicId("ns", "t")


class Before:
    """A table that answers reads of messages as of a moment, for so many reads of cells."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._heads: dict[bytes, dict[bytes, Cell]] = {}
        self._last: LogKey = LOG_KEY_MIN
        self.left = 0

    def answer_as_of(self, last: LogKey, reads: int) -> None:
        """Show nothing behind ``last``, and heads as they were when they were first read."""
        self._last, self.left = last, reads

    async def get(self, space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        found: dict[bytes, Cell] = await self._inner.get(space, row, columns)
        if space is not Space.MESSAGES:
            return found
        known = self._heads.setdefault(row, found)
        return known if self.left else found

    async def cells(self, *arguments: Any, **named: Any) -> Cells:
        found: Cells = await self._inner.cells(*arguments, **named)
        if not self.left:
            return found
        self.left -= 1
        kept = [cell for cell in found.cells if last_of(cell[0]) <= self._last]
        return Cells(kept, more=found.more and len(kept) == len(found.cells))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def range_of(node: TopicNode) -> MessageId:
    return (await node.topics.range(TOPIC, RangeQuery())).latest + LOG_KEY_MIN


async def apart(cluster: TopicCluster) -> tuple[TopicNode, TopicNode, Before]:
    """Return the topic's leader, and another node with its table, whose answers may be old."""
    home, other = await cluster.led(TOPIC)
    table = Before(cluster.sim.table)
    other.table.stand_before(table)
    return home, other, table


async def payloads(node: TopicNode, through: MessageId) -> list[bytes]:
    return [message.payload for message in await read(node.topics, None, through)]


@pytest.mark.parametrize("reads", range(STALE_READS_MAX))
@on_nodes(2)
async def test_a_stale_prefix_is_read_again(cluster: TopicCluster, reads: int) -> None:
    home, other, table = await apart(cluster)
    first = await range_of(other)
    assert await payloads(other, first) == [b"first"]
    await home.publish(TOPIC, b"second")
    end = await range_of(home)
    table.answer_as_of(first[:10], reads)
    assert await payloads(other, end) == [b"first", b"second"]
    assert table.left == 0
    assert await payloads(home, end) == [b"first", b"second"]


@on_nodes(2)
async def test_a_stale_prefix_that_stays_is_refused(cluster: TopicCluster) -> None:
    home, other, table = await apart(cluster)
    first = await range_of(other)
    assert await payloads(other, first) == [b"first"]
    await home.publish(TOPIC, b"second")
    end = await range_of(home)
    table.answer_as_of(first[:10], 1000)
    with pytest.raises(Unavailable, match="through") as caught:
        await payloads(other, end)
    assert caught.value.retriable
    assert await payloads(other, first) == [b"first"], "the stale read has all of this range"
    table.answer_as_of(first[:10], 0)
    assert await payloads(other, end) == [b"first", b"second"]


@on_nodes(2)
async def test_without_the_rule_a_stale_prefix_is_taken_for_the_range(
    cluster: TopicCluster,
) -> None:
    home, other, table = await apart(cluster)
    first = await range_of(other)
    assert await payloads(other, first) == [b"first"]
    await home.publish(TOPIC, b"second")
    end = await range_of(home)
    table.answer_as_of(first[:10], 1000)
    with in_force("whole-range"):
        assert await payloads(other, end) == [b"first"]


@on_nodes(2)
async def test_a_range_beyond_the_latest_message_is_refused_by_every_node(
    cluster: TopicCluster,
) -> None:
    home, other, _ = await apart(cluster)
    end = await range_of(home)
    for node in (home, other):
        with pytest.raises(Unavailable):
            await payloads(node, b"\x7f" + end[1:])


@on_nodes(2)
async def test_a_range_is_the_same_after_the_topic_has_moved(cluster: TopicCluster) -> None:
    home, other, _ = await apart(cluster)
    await home.publish(TOPIC, *[b"m"] * 50)
    end = await range_of(home)
    before = await read(home.topics, None, end)
    assert len(before) == 51
    await cluster.move(TOPIC, other)
    await other.publish(TOPIC, b"later")
    assert other.leads(TOPIC)
    for node in (home, other):
        assert await read(node.topics, None, end) == before


@on_nodes(2)
async def test_a_node_whose_clock_is_off_reads_nothing(cluster: TopicCluster) -> None:
    home, other, _ = await apart(cluster)
    end = await range_of(home)
    await other.step_clock(3_600_000)
    with pytest.raises(ClockSkew):
        await payloads(other, end)
    await other.step_clock(-3_600_000)
    assert await payloads(other, end) == [b"first"]

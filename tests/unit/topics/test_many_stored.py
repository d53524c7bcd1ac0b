"""Stored payloads and their references when the topic changes hands halfway, or storage answers late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker.storage.cells import Columns, Table
from broker.storage.old_reading import table_of

from broker.errors import OutcomeUnknown
from broker.leading import placement
from broker.model import PublishRequest, TopicId
from broker.storage.keys import LogId, control_key
from broker.testing.clock import pass_time
from broker.testing.many import Cluster, Member, led_by
from broker.topics.settings import PublishOptions

TOPIC = TopicId("ns", "t")
NUMBER = 7
LOG = LogId(TOPIC, 1, NUMBER)
REFERENCE = PublishRequest(NUMBER, [])


async def both(cluster: Cluster) -> tuple[Member, Member]:
    """Return the topic's leader, and the other node."""
    nodes = await cluster.start(0, 1)
    home = await led_by(cluster, TOPIC)
    return home, nodes[1 - home.me.instance]


async def move(cluster: Cluster, to: Member) -> None:
    await placement.pin(cluster.records, TOPIC, to.me.instance)
    await cluster.hint()
    await pass_time(0.1)


async def test_a_store_that_lands_late_is_not_stored_again_under_its_key(cluster: Cluster) -> None:
    """The first leader's commit lands after the second one has looked for the key, before it commits."""
    home, other = await both(cluster)
    real = cluster.cells.check_and_put
    late: list[Any] = []
    landed: list[bool] = []
    sent = asyncio.Event()

    async def late_first(table: Table, key: bytes, expected: bytes | None, value: bytes) -> bool:
        if key == control_key(LOG):
            if not late:
                late.append((table, key, expected, value))
                sent.set()
                await pass_time(5)
            elif not landed:
                landed.append(await real(*late[0]))
        return await real(table, key, expected, value)

    cluster.cells.check_and_put = late_first  # type: ignore[method-assign]
    request, options = PublishRequest(NUMBER, [b"stored"]), PublishOptions(key="k")
    first = asyncio.ensure_future(home.topics.store(TOPIC, request, options))
    await sent.wait()
    await move(cluster, other)
    again = await other.topics.store(TOPIC, request, options)
    assert landed == [True]
    assert again.replayed
    with pytest.raises(OutcomeUnknown):
        await first
    await cluster.publish(other, TOPIC, pointer=NUMBER)
    assert await cluster.payloads(other, TOPIC) == [b"first", b"stored"]


@pytest.mark.parametrize("is_marked", [True, False])
async def test_an_old_answer_about_stored_payloads_makes_no_second_reference(
    cluster: Cluster, *, is_marked: bool
) -> None:
    home, other = await both(cluster)
    await home.topics.store(TOPIC, PublishRequest(NUMBER, [b"stored"]))
    before = await cluster.cells.get(table_of(LOG), control_key(LOG))
    if not is_marked:
        home.store.on("mark_published", _nothing)
    published = await home.topics.publish(TOPIC, REFERENCE)
    await move(cluster, other)
    real = cluster.cells.get
    old = [before]

    async def old_first(table: Table, key: bytes) -> Columns | None:
        if key == control_key(LOG) and old:
            return old.pop()
        return await real(table, key)

    cluster.cells.get = old_first  # type: ignore[method-assign]
    again = await other.topics.publish(TOPIC, REFERENCE)
    assert not old
    assert again.first == published.first
    assert await cluster.payloads(other, TOPIC) == [b"first", b"stored"]


async def _nothing(*_: Any) -> None:
    """Leave the mark out, as a crash does."""

"""Stored payloads and their references when the topic changes hands halfway, or storage answers late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker.coordination import placement
from broker.errors import NotLeader, Unavailable
from broker.model import PublishRequest, TopicId
from broker.storage.keys import LogId, root_key
from broker.storage.table import HEAD, Cell, Space
from broker.testing.virtual_time import pass_time
from broker.topics.settings import PublishOptions
from tests.kit.bench import Hook, failing
from tests.kit.many import Cluster, Member, led_by

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
    """The first leader's append comes to the store when the second one has stored the same."""
    home, other = await both(cluster)
    sent, landed = asyncio.Event(), []

    async def late(real: Hook, *arguments: Any, **named: Any) -> bool:
        sent.set()
        await pass_time(5)
        landed.append(await real(*arguments, **named))
        return False

    home.table.on("append", late)
    request, options = PublishRequest(NUMBER, [b"stored"]), PublishOptions(key="k")
    first = asyncio.ensure_future(home.topics.store(TOPIC, request, options))
    await sent.wait()
    await move(cluster, other)
    await other.topics.store(TOPIC, request, options)
    with pytest.raises(NotLeader):
        await first
    assert landed == [False]
    assert (await other.topics.store(TOPIC, request, options)).replayed
    await cluster.publish(other, TOPIC, pointer=NUMBER)
    assert await cluster.payloads(other, TOPIC) == [b"first", b"stored"]


@pytest.mark.parametrize("is_marked", [True, False])
async def test_an_old_answer_about_stored_payloads_makes_no_second_reference(
    cluster: Cluster, *, is_marked: bool
) -> None:
    home, other = await both(cluster)
    await home.topics.store(TOPIC, PublishRequest(NUMBER, [b"stored"]))
    before = await cluster.memory.get(Space.PAYLOADS, root_key(LOG), (HEAD,))
    if not is_marked:
        home.table.on("root", _real, failing(Unavailable("as in a crash")))
    published = await home.topics.publish(TOPIC, REFERENCE)
    await move(cluster, other)
    real = cluster.memory.get
    old = [before]

    async def old_first(space: Space, row: bytes, columns: Sequence[bytes]) -> dict[bytes, Cell]:
        if row == root_key(LOG) and space is Space.PAYLOADS and old:
            return old.pop()
        return await real(space, row, columns)

    cluster.memory.get = old_first  # type: ignore[method-assign]
    again = await other.topics.publish(TOPIC, REFERENCE)
    assert not old
    assert again.first == published.first
    assert await cluster.payloads(other, TOPIC) == [b"first", b"stored"]


async def _real(real: Hook, *arguments: Any, **named: Any) -> Any:
    return await real(*arguments, **named)

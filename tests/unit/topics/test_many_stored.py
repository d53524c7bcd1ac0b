"""Stored payloads and their references when the topic changes hands halfway, or storage answers late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker.errors import NotLeader, Unavailable
from broker.model import PublishRequest, TopicId
from broker.storage.keys import LogId, root_key
from broker.storage.table import HEAD, Cell, Space
from broker.testing.virtual_time import pass_time
from broker.topics.settings import PublishOptions
from tests.kit.bench import Hook, failing, passing
from tests.kit.topic_nodes import TopicCluster, on_nodes

TOPIC = TopicId("ns", "t")
NUMBER = 7
LOG = LogId(TOPIC, 1, NUMBER)
REFERENCE = PublishRequest(NUMBER, [])


@on_nodes(2)
async def test_a_store_that_lands_late_is_not_stored_again_under_its_key(
    cluster: TopicCluster,
) -> None:
    """The first leader's append arrives after the second leader has stored the same payload."""
    home, other = await cluster.led(TOPIC)
    sent, landed = asyncio.Event(), []

    async def late(real: Hook, *arguments: Any, **named: Any) -> bool:
        sent.set()
        await pass_time(4)
        landed.append(await real(*arguments, **named))
        return False

    home.table.on("append", late)
    request, options = PublishRequest(NUMBER, [b"stored"]), PublishOptions(key="k")
    first = asyncio.ensure_future(home.topics.store(TOPIC, request, options))
    await sent.wait()
    await cluster.pin(TOPIC, other)
    await pass_time(0.1)
    await other.topics.store(TOPIC, request, options)
    assert not landed
    with pytest.raises(NotLeader):
        await first
    assert landed == [False]
    assert (await other.topics.store(TOPIC, request, options)).replayed
    await other.topics.publish(TOPIC, REFERENCE)
    assert await other.payloads(TOPIC) == [b"first", b"stored"]


@pytest.mark.parametrize("is_marked", [True, False])
@on_nodes(2)
async def test_an_old_answer_about_stored_payloads_makes_no_second_reference(
    cluster: TopicCluster, *, is_marked: bool
) -> None:
    home, other = await cluster.led(TOPIC)
    await home.topics.store(TOPIC, PublishRequest(NUMBER, [b"stored"]))
    before = await cluster.sim.table.get(Space.PAYLOADS, root_key(LOG), (HEAD,))
    if not is_marked:
        home.table.on("root", passing, failing(Unavailable("as in a crash")))
    published = await home.topics.publish(TOPIC, REFERENCE)
    await cluster.move(TOPIC, other)
    old = [before]

    async def old_first(
        real: Hook, space: Space, row: bytes, columns: Sequence[bytes]
    ) -> dict[bytes, Cell]:
        if row == root_key(LOG) and space is Space.PAYLOADS and old:
            return old.pop()
        found: dict[bytes, Cell] = await real(space, row, columns)
        return found

    other.table.on("get", *[old_first] * 20)
    again = await other.topics.publish(TOPIC, REFERENCE)
    assert not old
    assert again.first == published.first
    assert await other.payloads(TOPIC) == [b"first", b"stored"]

import asyncio

import pytest

from broker.client import Snapshot
from broker.client.client_request import Reply
from broker.errors import OutcomeUnknown, TopicNotFound

OK = Reply(200, {}, b"")


def answering(*rollbacks):
    numbers, script = iter(range(100)), iter(rollbacks)

    def answer(request):
        if request.path.endswith("/publish"):
            return Reply(200, {"content-type": "avro/binary"}, b"range %d" % next(numbers))
        return next(script, OK)

    return answer


async def test_every_publish_is_rolled_back_the_last_one_first(make_client, transport):
    transport.answer = answering()
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        await transaction.publish("ns1/a", [b"0", b"1"])
        await transaction.store("ns1/b", b"2")
        await transaction.publish_stored("ns1/b")
        assert await transaction.rollback()
        rolled_back = [r for r in transport.requests if r.path.endswith("/rollback")]
        assert [(r.topic.topic, r.body) for r in rolled_back] == [
            ("b", b"range 1"),
            ("a", b"range 0"),
        ]
        assert await transaction.rollback()
    assert len([r for r in transport.requests if r.path.endswith("/rollback")]) == 2


async def test_a_rollback_waits_for_publishes_in_flight(make_client, transport):
    transport.answer = answering()
    transport.gate = asyncio.Event()
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        publishing = asyncio.create_task(transaction.publish("ns1/a", b"0"))
        await transport.arrived()
        rolling_back = asyncio.create_task(transaction.rollback())
        asyncio.get_running_loop().call_later(0, transport.gate.set)
        assert await rolling_back
        assert publishing.done()
    assert [r.body for r in transport.requests if r.path.endswith("/rollback")] == [b"range 0"]


async def test_a_publish_during_a_rollback_is_rolled_back_later(make_client, transport):
    transport.answer = answering()
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        await transaction.publish("ns1/a", b"0")
        transport.gate = asyncio.Event()
        rolling_back = asyncio.create_task(transaction.rollback())
        await transport.arrived(2)
        publishing = asyncio.create_task(transaction.publish("ns1/a", b"1"))
        await transport.arrived(3)
        transport.gate.set()
        await publishing
        assert not await rolling_back
        assert await transaction.rollback()
    bodies = [r.body for r in transport.requests if r.path.endswith("/rollback")]
    assert bodies == [b"range 0", b"range 1"]


async def test_a_publish_of_unknown_outcome_makes_the_rollback_uncertain(make_client, transport):
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        transport.answer = answering()
        await transaction.publish("ns1/a", b"0")
        transport.answer = lambda _: OutcomeUnknown("lost")
        with pytest.raises(OutcomeUnknown):
            await transaction.publish("ns1/a", b"1")
        transport.answer = answering()
        assert not await transaction.rollback()
    assert transport.requests[-1].path.endswith("/rollback")


async def test_a_refused_publish_needs_no_undoing(make_client, transport):
    transport.answer = lambda _: TopicNotFound("no")
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        with pytest.raises(TopicNotFound):
            await transaction.publish("ns1/a", b"0")
        assert await transaction.rollback()


async def test_a_rollback_that_fails_does_not_stop_the_others_and_may_be_repeated(
    make_client, transport
):
    refused = Reply(404, {"broker-error": "topic_not_found"}, b"")
    transport.answer = answering(refused)
    async with make_client() as client:
        transaction = client.transaction_publisher(7)
        await transaction.publish("ns1/a", b"0")
        await transaction.publish("ns1/b", b"1")
        assert not await transaction.rollback()
        assert [r.topic.topic for r in transport.requests[2:]] == ["b", "a"]
        assert await transaction.rollback()
    assert [r.topic.topic for r in transport.requests[4:]] == ["b"]


async def test_only_a_transactional_publish_can_be_rolled_back(make_client):
    async with make_client() as client:
        published = await client.publish("ns1/a", b"0")
        with pytest.raises(ValueError, match="write pointer"):
            await client.rollback("ns1/a", published)


async def test_polls_use_the_transactions_snapshot(make_client, transport):
    transport.answer = lambda _: [b"\x00"]
    async with make_client() as client:
        with pytest.raises(ValueError, match="snapshot"):
            await client.transaction_publisher(7).poll("ns1/a")
        snapshot = Snapshot(transaction_id=7, read_pointer=7)
        assert await client.transaction_publisher(7, snapshot).poll("ns1/a") == []

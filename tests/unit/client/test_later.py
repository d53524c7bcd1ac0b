import asyncio
import logging

import pytest

from broker.client import Published
from broker.client.client_request import Reply
from broker.errors import BodyTooLarge, OutcomeUnknown, Overloaded, Unavailable

OK = Reply(200, {}, b"")
BUSY = Reply(503, {"broker-error": "overloaded"}, b"busy")


def sent(transport):
    return [payload for i in range(len(transport.requests)) for payload in transport.payloads(i)]


async def test_messages_are_published_in_the_order_of_the_calls(make_client, transport):
    async with make_client(batch_messages_max=7) as client:
        answers = [await client.publish_later("ns1/t1", str(i)) for i in range(50)]
        await client.flush()
        assert [answer.result() for answer in answers] == [Published()] * 50
        assert client.later.counts.accepted == client.later.counts.published == 50
        assert client.later.waiting == 0
    assert sent(transport) == [str(i).encode() for i in range(50)]
    assert all(len(transport.payloads(i)) <= 7 for i in range(len(transport.requests)))


async def test_the_order_survives_retries(make_client, transport):
    answers = iter([BUSY, BUSY, OK, BUSY])
    transport.answer = lambda _: next(answers, OK)
    async with make_client(batch_messages_max=2) as client:
        for i in range(6):
            await client.publish_later("ns1/t1", str(i))
        await client.flush()
    stored = [transport.payloads(i) for i in (2, 4, 5)]
    assert stored == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]


async def test_a_full_queue_makes_the_caller_wait(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(later_messages_max=3) as client:
        for i in range(3):
            await client.publish_later("ns1/t1", str(i))
        fourth = asyncio.create_task(client.publish_later("ns1/t1", "3"))
        await transport.arrived()
        assert not fourth.done()
        transport.gate.set()
        await asyncio.wait_for(await fourth, 5)
    assert sent(transport) == [b"0", b"1", b"2", b"3"]


async def test_callers_that_wait_for_room_keep_their_order(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(later_bytes_max=6) as client:
        first = await client.publish_later("ns1/t1", b"000000")

        async def when_there_is_room() -> None:
            await first
            await client.publish_later("ns1/t1", b"3")

        large = asyncio.create_task(client.publish_later("ns1/t1", b"11111"))
        small = asyncio.create_task(client.publish_later("ns1/t1", b"2"))
        later = asyncio.create_task(when_there_is_room())
        await transport.arrived()
        dropped = await client.publish_later("ns1/t1", b"", on_full="drop")
        assert isinstance(dropped.exception(), Overloaded)
        transport.gate.set()
        await asyncio.gather(large, small, later)
        await client.flush()
    assert sent(transport) == [b"000000", b"11111", b"2", b"3"]


async def test_a_close_ends_the_waiting_for_room(make_client, transport):
    transport.gate = asyncio.Event()
    client = make_client(later_messages_max=1, deadline_s=30)
    await client.publish_later("ns1/t1", b"0")
    waiting = [asyncio.create_task(client.publish_later("ns1/t1", b"1")) for _ in range(2)]
    await transport.arrived()
    await client.close(flush_s=0)
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in told] == [Unavailable, Unavailable]
    assert client.later.counts.accepted == 1


async def test_a_full_queue_drops_and_counts(make_client, transport, caplog):
    transport.gate = asyncio.Event()
    async with make_client(later_bytes_max=10, later_on_full="drop") as client:
        kept = await client.publish_later("ns1/t1", b"x" * 10)
        with caplog.at_level(logging.WARNING):
            lost = [await client.publish_later("ns1/t1", b"y") for _ in range(3)]
        assert all(isinstance(answer.exception(), Overloaded) for answer in lost)
        assert client.later.counts.dropped == 3
        assert len(caplog.records) == 1
        transport.gate.set()
        await client.flush()
        assert kept.result() == Published()


async def test_a_full_queue_raises(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(later_messages_max=1) as client:
        await client.publish_later("ns1/t1", b"x")
        with pytest.raises(Overloaded, match="full"):
            await client.publish_later("ns1/t1", b"y", on_full="raise")
        transport.gate.set()


async def test_an_unknown_on_full_option_is_refused(make_client):
    async with make_client() as client:
        with pytest.raises(ValueError, match="not 'block'"):
            await client.publish_later("ns1/t1", b"x", on_full="block")
        assert client.later.counts.accepted == client.later.counts.dropped == 0


async def test_one_message_always_fits_in_an_empty_queue(make_client):
    async with make_client(later_bytes_max=10, later_on_full="raise") as client:
        await (await client.publish_later("ns1/t1", b"x" * 1000))


async def test_a_message_is_given_up_at_the_deadline_of_its_call_and_counted(
    make_client, transport
):
    transport.answer = lambda _: BUSY
    async with make_client(deadline_s=0.3) as client:
        answer = await client.publish_later("ns1/t1", b"x")
        await client.flush()
        assert isinstance(answer.exception(), Overloaded)
        assert client.later.counts.refused == 1
    assert len(transport.requests) > 1


async def test_an_unknown_outcome_is_counted_as_such_and_not_repeated(make_client, transport):
    answers = iter([OutcomeUnknown("lost")])
    transport.answer = lambda _: next(answers, OK)
    async with make_client(batch_messages_max=2) as client:
        answers_of = [await client.publish_later("ns1/t1", str(i)) for i in range(3)]
        await client.flush()
        assert client.later.counts.unknown == 2
        assert answers_of[2].result() == Published()


async def test_a_bad_message_in_the_queue_fails_alone(make_client, transport):
    def answer(_):
        too_large = any(len(payload) > 5 for payload in transport.payloads())
        return Reply(413, {"broker-error": "body_too_large"}, b"") if too_large else OK

    transport.answer = answer
    async with make_client() as client:
        answers = [await client.publish_later("ns1/t1", b"x" * n) for n in (1, 9, 2)]
        await client.flush()
    assert answers[0].result() == answers[2].result() == Published()
    assert isinstance(answers[1].exception(), BodyTooLarge)


async def test_a_close_gives_the_queue_some_time_and_then_gives_up(make_client, transport):
    transport.gate = asyncio.Event()
    client = make_client(batch_messages_max=1)
    first = await client.publish_later("ns1/t1", b"in flight")
    second = await client.publish_later("ns1/t1", b"waits")
    await transport.arrived()
    await client.close(flush_s=0.01)
    assert isinstance(first.exception(), OutcomeUnknown)
    assert isinstance(second.exception(), Unavailable)
    counts = client.later.counts
    assert counts.accepted == counts.published + counts.refused + counts.unknown == 2
    with pytest.raises(Unavailable):
        await client.publish_later("ns1/t1", b"too late")


async def test_a_close_waits_for_messages_that_can_be_published(make_client, transport):
    client = make_client()
    answer = await client.publish_later("ns1/t1", b"x")
    await client.close()
    assert answer.result() == Published()

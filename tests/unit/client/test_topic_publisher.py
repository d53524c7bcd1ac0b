import asyncio

import pytest

from broker.client import Published
from broker.client.client_request import Reply
from broker.errors import (
    BodyTooLarge,
    BrokerError,
    OutcomeUnknown,
    Overloaded,
    TopicNotFound,
    Unavailable,
)
from broker.model import log_key

OK = Reply(200, {}, b"")


async def test_calls_awaited_together_share_one_request_in_their_order(make_client, transport):
    async with make_client() as client:
        calls = [client.publish("ns1/t1", str(i)) for i in range(500)]
        assert await asyncio.gather(*calls) == [Published()] * 500
    assert len(transport.requests) == 1
    assert transport.payloads() == [str(i).encode() for i in range(500)]


async def test_each_call_gets_its_own_id(make_client, transport):
    first, last = log_key(7, 254) + bytes(10), log_key(8, 1) + bytes(10)
    headers = {"broker-first-id": first.hex(), "broker-last-id": last.hex(), "broker-count": "4"}
    transport.answer = lambda request: Reply(200, headers, b"")
    own = [log_key(ms, seq) + bytes(10) for ms, seq in ((7, 254), (7, 255), (8, 0), (8, 1))]
    told = [Published(first_id=each, last_id=each, count=1) for each in own]
    async with make_client() as client:
        assert await asyncio.gather(*[client.publish("ns1/t1", b"x") for _ in range(4)]) == told
        later = [await client.publish_later("ns1/t1", b"x") for _ in range(4)]
        assert await asyncio.gather(*later) == told
        assert await client.publish("ns1/t1", [b"x"] * 4) == Published(
            first_id=first, last_id=last, count=4
        )


async def test_a_single_caller_does_not_wait_for_others(make_client, transport):
    async with make_client() as client:
        await client.publish("ns1/t1", b"a")
        await client.publish("ns1/t1", b"b")
    assert [transport.payloads(0), transport.payloads(1)] == [[b"a"], [b"b"]]
    assert transport.connections == 1


async def test_calls_during_a_request_in_flight_fill_the_next_one(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(requests_in_flight_max=1) as client:
        first = asyncio.create_task(client.publish("ns1/t1", b"0"))
        await transport.arrived()
        others = [asyncio.create_task(client.publish("ns1/t1", b"%d" % i)) for i in range(1, 10)]
        transport.gate.set()
        await asyncio.gather(first, *others)
    assert [len(transport.payloads(i)) for i in range(len(transport.requests))] == [1, 9]


async def test_requests_are_bounded_in_messages_and_bytes(make_client, transport):
    async with make_client(batch_messages_max=10, batch_bytes_max=100) as client:
        await asyncio.gather(*[client.publish("ns1/t1", b"x") for _ in range(25)])
        assert [len(transport.payloads(i)) for i in range(3)] == [10, 10, 5]
        transport.requests.clear()
        await asyncio.gather(*[client.publish("ns1/t1", b"x" * 40) for _ in range(5)])
        assert [len(transport.payloads(i)) for i in range(3)] == [2, 2, 1]
        transport.requests.clear()
        await client.publish("ns1/t1", b"x" * 1000)
        assert len(transport.payloads()) == 1


async def test_topics_do_not_mix_and_each_has_its_connection(make_client, transport):
    async with make_client() as client:
        await asyncio.gather(client.publish("ns1/a", b"a"), client.publish(("ns1", "b"), b"b"))
    assert sorted(request.topic.topic for request in transport.requests) == ["a", "b"]
    assert transport.connections == 2


async def test_keyed_transactional_and_short_lived_calls_are_sent_alone(make_client, transport):
    async with make_client() as client:
        await asyncio.gather(
            client.publish("ns1/t1", b"plain"),
            client.publish("ns1/t1", b"keyed", idempotency_key="k"),
            client.publish("ns1/t1", b"transactional", pointer=7),
            client.publish("ns1/t1", b"brief", ttl_s=5),
            client.publish("ns1/t1", b"alone", coalesce=False),
            client.publish("ns1/t1", b"plain too"),
        )
    sent = sorted(transport.payloads(i) for i in range(len(transport.requests)))
    assert sent == [
        [b"alone"],
        [b"brief"],
        [b"keyed"],
        [b"plain", b"plain too"],
        [b"transactional"],
    ]


async def test_coalescing_can_be_off(make_client, transport):
    async with make_client(coalesce=False) as client:
        await asyncio.gather(*[client.publish("ns1/t1", b"x") for _ in range(5)])
    assert len(transport.requests) == 5


async def test_coalescing_can_be_on_for_one_call(make_client, transport):
    async with make_client(coalesce=False) as client:
        calls = [client.publish("ns1/t1", str(i), coalesce=i < 3 or None) for i in range(5)]
        await asyncio.gather(*calls)
    assert sorted(len(transport.payloads(i)) for i in range(3)) == [1, 1, 3]


async def test_a_message_that_is_refused_fails_alone(make_client, transport):
    def answer(request):
        if any(len(payload) > 10 for payload in transport.payloads()):
            return Reply(413, {"broker-error": "body_too_large"}, b"too large")
        return OK

    transport.answer = answer
    async with make_client() as client:
        calls = [client.publish("ns1/t1", b"x" * size) for size in (1, 11, 2)]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert first == third == Published()
    assert isinstance(second, BodyTooLarge)
    assert [len(transport.payloads(i)) for i in range(4)] == [3, 1, 1, 1]


async def test_a_refusal_of_all_messages_is_not_retried_for_each(make_client, transport):
    transport.answer = lambda _: Reply(404, {"broker-error": "topic_not_found"}, b"no")
    async with make_client() as client:
        calls = [client.publish("ns1/t1", b"x") for _ in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, TopicNotFound) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 5
    assert len(transport.requests) == 1


async def test_a_retriable_refusal_is_retried_for_all_together(make_client, transport):
    answers = iter([Reply(503, {"broker-error": "overloaded"}, b"busy")] * 3 + [OK])
    transport.answer = lambda _: next(answers)
    async with make_client() as client:
        await asyncio.gather(*[client.publish("ns1/t1", b"x") for _ in range(5)])
    assert [len(transport.payloads(i)) for i in range(4)] == [5, 5, 5, 5]


async def test_a_retriable_refusal_that_lasts_ends_at_the_deadline(make_client, transport):
    transport.answer = lambda _: Reply(503, {"broker-error": "overloaded"}, b"busy")
    async with make_client(deadline_s=0.02) as client:
        with pytest.raises(Overloaded):
            await client.publish("ns1/t1", b"x")
    assert len(transport.requests) > 1


async def test_an_unknown_outcome_is_not_repeated_without_a_key(make_client, transport):
    transport.answer = lambda request: OutcomeUnknown("lost")
    async with make_client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.publish("ns1/t1", b"x")
    assert len(transport.requests) == 1


async def test_an_unknown_outcome_is_repeated_under_the_clients_own_key(make_client, transport):
    answers = iter([OutcomeUnknown("lost"), OK])
    transport.answer = lambda _: next(answers)
    async with make_client(idempotent=True) as client:
        await asyncio.gather(*[client.publish("ns1/t1", b"x") for _ in range(3)])
    first, second = transport.requests
    assert first == second
    assert first.headers["Idempotency-Key"]


async def test_messages_of_cancelled_callers_are_not_sent(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(requests_in_flight_max=1) as client:
        first = asyncio.create_task(client.publish("ns1/t1", b"first"))
        await transport.arrived()
        stays = asyncio.create_task(client.publish("ns1/t1", b"stays"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.publish("ns1/t1", b"gone"), 0.01)
        transport.gate.set()
        await asyncio.gather(first, stays)
    assert transport.payloads() == [b"stays"]


async def test_several_connections_share_the_waiting_messages(make_client, transport):
    transport.gate = asyncio.Event()
    async with make_client(connections_per_topic=2) as client:
        calls = [asyncio.create_task(client.publish("ns1/t1", b"x")) for _ in range(64)]
        await transport.arrived(2)
        transport.gate.set()
        await asyncio.gather(*calls)
    assert [len(transport.payloads(i)) for i in range(2)] == [32, 32]
    assert transport.connections == 2


async def test_closing_refuses_waiting_messages(make_client, transport):
    transport.gate = asyncio.Event()
    client = make_client(requests_in_flight_max=1)
    in_flight = asyncio.create_task(client.publish("ns1/t1", b"in flight"))
    await transport.arrived()
    waits = asyncio.create_task(client.publish("ns1/t1", b"waits"))
    await asyncio.wait({waits}, timeout=0.01)
    closing = asyncio.create_task(client.close())
    with pytest.raises(Unavailable, match="closed"):
        await waits
    with pytest.raises(OutcomeUnknown):
        await in_flight
    await closing
    assert len(transport.requests) == 1


async def test_a_server_that_is_not_known_to_be_ours_gets_one_request_at_a_time(
    make_client, transport
):
    transport.ours = False
    transport.gate = asyncio.Event()
    async with make_client(requests_in_flight_max=5) as client:
        first = asyncio.create_task(client.publish("ns1/t1", b"first"))
        await transport.arrived()
        second = asyncio.create_task(client.publish("ns1/t1", b"second"))
        await asyncio.wait({second}, timeout=0.02)
        assert len(transport.requests) == 1
        transport.gate.set()
        await asyncio.gather(first, second)
    assert [transport.payloads(0), transport.payloads(1)] == [[b"first"], [b"second"]]


async def test_connections_of_idle_topics_are_closed(make_client, transport):
    async with make_client(idle_s_max=0.0) as client:
        await client.publish("ns1/a", b"x")
        (idle,) = transport.opened
        idle.idle_since = float("-inf")
        await client.publish("ns1/b", b"x")
        assert not idle.usable
        await client.publish("ns1/a", b"x")
    assert transport.connections == 3


async def after(seconds):
    """Wait for a moment of virtual time."""
    loop = asyncio.get_running_loop()
    moment = loop.create_future()
    loop.call_later(seconds, moment.set_result, None)
    await moment


async def failures(calls):
    """Await calls that fail. Return the error of each, and when it failed."""
    loop = asyncio.get_running_loop()

    async def fails(call):
        with pytest.raises(BrokerError) as error:
            await call
        return error.value, loop.time()

    found = await asyncio.gather(*[fails(call) for call in calls])
    return [error for error, _ in found], [at for _, at in found]


@pytest.mark.parametrize("later", [False, True])
async def test_each_of_many_publishes_to_nobody_fails_at_its_own_deadline(
    make_client, transport, later
):
    async def refused(_):
        raise Unavailable("The broker could not be reached: connection refused")

    transport.connect = refused
    async with make_client(deadline_s=2) as client:

        async def publish(number):
            await after(float(number % 2))  # Half of them a second later.
            if later:
                await (await client.publish_later("ns1/t1", b"x" * 2000))
            else:
                await client.publish("ns1/t1", b"x" * 2000)

        began = asyncio.get_running_loop().time()
        errors, times = await failures([publish(number) for number in range(5_000)])
    assert {round(at - began, 1) for at in times} == {2.0, 3.0}
    assert {type(error) for error in errors} == {Unavailable}
    assert all("connection refused" in error.message for error in errors)


async def test_a_deadline_passes_in_the_queue_and_in_flight(make_client, transport):
    transport.gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with make_client(deadline_s=2, requests_in_flight_max=1) as client:
        in_flight = asyncio.create_task(client.publish("ns1/t1", b"in flight"))
        await transport.arrived()
        began = loop.time()
        queued = [client.publish("ns1/t1", b"%d" % number) for number in range(3)]
        errors, times = await failures([in_flight, *queued])
        assert [type(error) for error in errors] == [OutcomeUnknown] + [Unavailable] * 3
        assert all(at - began == pytest.approx(2.0) for at in times)
        transport.gate.set()
        await client.publish("ns1/t1", b"next")
    assert [transport.payloads(at) for at in range(len(transport.requests))] == [
        [b"in flight"],
        [b"next"],
    ]


async def test_a_message_whose_deadline_has_passed_is_not_sent_with_the_next_attempt(
    make_client, transport
):
    busy = Reply(503, {"broker-error": "overloaded", "retry-after": "2"}, b"busy")
    answers = iter([busy, OK])
    transport.answer = lambda _: next(answers)
    transport.gate = asyncio.Event()
    async with make_client(deadline_s=3, requests_in_flight_max=1, batch_messages_max=2) as client:
        before = asyncio.create_task(client.publish("ns1/t1", b"before"))
        await transport.arrived()
        old = asyncio.create_task(client.publish("ns1/t1", b"old"))
        await after(1.5)
        new = asyncio.create_task(client.publish("ns1/t1", b"new"))
        await after(0)
        answers = iter([OK, busy, OK])
        transport.gate.set()
        await before
        with pytest.raises(Overloaded):
            await old
        assert await new == Published()
    assert transport.payloads(1) == [b"old", b"new"]
    assert transport.payloads(2) == [b"new"]

"""Publishes, polls and tails against a cluster of stub nodes that move leadership, drain and die."""

import asyncio
import select

import pytest

from broker.client import Client, Leader, OutcomeUnknown, Published, TailOptions
from tests.kit.bench import settle
from tests.kit.serving import eventually
from tests.unit.client.fake_cluster import FAREWELL, Cluster

T = "ns1/t1"
QUICK = {"retry_delay_min_s": 0.001, "retry_delay_max_s": 0.01, "deadline_s": 10.0}


@pytest.fixture
async def cluster():
    cluster = Cluster(3)
    for node in cluster.nodes:
        await node.start()
    cluster.leads(T, 0, 1)
    yield cluster
    for node in cluster.nodes:
        await node.kill()


def client_of(cluster, *numbers, **options):
    urls = [cluster.nodes[number].url for number in numbers or range(3)]
    return Client(urls, **{**QUICK, **options})


def numbers(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_after_the_first_answer_no_request_is_forwarded(cluster, seed):
    async with client_of(cluster, seed) as client:
        await client.publish(T, b"0")
        cluster.forwarded.clear()
        for payload in numbers(20, 1):
            await client.publish(T, payload)
        await client.publish(T, [b"21", b"22"])
        await client.poll(T)
        await (await client.publish_later(T, b"23"))
        tail = client.tail(T, options=TailOptions(follow=False))
        assert [message.payload async for message in tail] == numbers(24)
    assert not cluster.forwarded


async def test_without_following_the_given_node_is_asked(cluster):
    async with client_of(cluster, 1, follow_leaders=False) as client:
        for payload in numbers(5):
            await client.publish(T, payload)
    assert cluster.forwarded[T] == 5
    assert not cluster.nodes[0].requests


@pytest.mark.parametrize("coalesce", [True, False])
async def test_a_move_costs_no_more_forwards_than_requests_in_flight(cluster, coalesce):
    async with client_of(cluster, coalesce=coalesce) as client:
        await client.publish(T, b"0")
        cluster.forwarded.clear()
        for epoch, leader in enumerate((1, 2, 0, 2), start=2):
            cluster.leads(T, leader, epoch)
            for payload in numbers(5):
                await client.publish(T, payload)
        assert cluster.forwarded[T] == 4
        await client.poll(T)
        assert cluster.forwarded[T] == 4


async def test_requests_in_flight_on_the_old_connection_settle_before_the_next_is_sent(cluster):
    old, new = cluster.nodes[0], cluster.nodes[1]
    async with client_of(cluster, 0) as client:
        await client.publish(T, b"0")
        held = asyncio.Event()
        old.holds.append(held)
        first = asyncio.create_task(client.publish(T, b"1"))
        await cluster.until(lambda: len(old.requests) == 2, "the first request arrives")
        second = asyncio.create_task(client.publish(T, b"2"))
        await cluster.until(lambda: old.received == 3, "the second is in flight")
        # The answer to a poll names the new leader while both are in flight to the old one.
        cluster.leads(T, 1, 2)
        await client.poll(T)
        third = asyncio.create_task(client.publish(T, b"3"))
        await asyncio.wait({third}, timeout=0.02)
        assert not new.requests
        held.set()
        await asyncio.gather(first, second, third)
    assert cluster.payloads(T) == numbers(4)
    assert new.requests[-1] == (T, "publish")


async def test_an_older_epoch_does_not_move_the_client_back(cluster):
    async with client_of(cluster) as client:
        stale = f"{cluster.nodes[1].url};node=1;epoch=1"
        cluster.leads(T, 2, 7)
        await client.publish(T, b"0")
        cluster.forwarded.clear()
        cluster.nodes[2].header = stale
        for payload in numbers(5, 1):
            await client.publish(T, payload)
    assert not cluster.forwarded
    assert not any(action == "publish" for _, action in cluster.nodes[1].requests[1:])


async def test_dead_nodes_are_passed_over(cluster):
    cluster.leads(T, 2, 1)
    await cluster.nodes[0].kill()
    await cluster.nodes[1].kill()
    async with client_of(cluster) as client:
        for payload in numbers(5):
            published = await client.publish(T, payload)
            assert published == Published(leader=Leader(cluster.nodes[2].url, 2, 1))
        await client.poll(T)
    assert cluster.payloads(T) == numbers(5)


async def test_a_client_with_one_address_uses_the_leader_after_that_node_dies(cluster):
    cluster.leads(T, 2, 1)
    async with client_of(cluster, 0) as client:
        await client.publish(T, b"0")
        await cluster.nodes[0].kill()
        await client.publish(T, b"1")
        assert len(await client.poll(T)) == 2


async def test_a_leader_that_dies_idle_is_replaced_without_an_error(cluster):
    async with client_of(cluster) as client:
        await client.publish(T, b"0")
        await cluster.nodes[0].kill()
        cluster.leads(T, 1, 2)
        await client.publish(T, b"1")
        await client.publish(T, [b"2", b"3"])
        assert len(await client.poll(T)) == 4
    assert cluster.forwarded[T] <= 2


async def test_a_publish_that_a_dying_leader_swallowed_is_unknown(cluster):
    async with client_of(cluster) as client:
        await client.publish(T, b"0")
        cluster.nodes[0].swallow = 1
        with pytest.raises(OutcomeUnknown):
            await client.publish(T, b"1")
        cluster.leads(T, 1, 2)
        await client.publish(T, b"2")
    assert cluster.payloads(T) == numbers(3)


@pytest.mark.parametrize("together", [True, False])
async def test_a_keyed_publish_is_retried_elsewhere_in_order_and_stored_once(cluster, together):
    async with client_of(cluster, idempotent=True) as client:
        await client.publish(T, b"0")
        cluster.nodes[0].swallow = 1
        if together:
            payloads = numbers(50, 1)
            sent = [asyncio.create_task(client.publish(T, payloads[0]))]
            await cluster.until(lambda: len(cluster.payloads(T)) == 2, "the first is stored")
            sent += [asyncio.create_task(client.publish(T, payload)) for payload in payloads[1:]]
            await asyncio.gather(*sent)
        else:
            for payload in numbers(50, 1):
                await client.publish(T, payload)
    assert cluster.payloads(T) == numbers(51)


async def test_a_node_that_drains_is_left_without_an_error_and_in_order(cluster):
    async with client_of(cluster) as client:
        await client.publish(T, b"0")
        sent = []
        for payload in numbers(200, 1):
            sent.append(asyncio.create_task(client.publish(T, payload)))
            await settle(1)
            if len(sent) == 50:
                cluster.nodes[0].draining = True
            if len(sent) == 100:
                cluster.leads(T, 1, 2)
        await asyncio.gather(*sent)
        assert cluster.payloads(T) == numbers(201)
        before = len(cluster.nodes[0].requests)
        for payload in numbers(10):
            await client.publish(T, payload)
    assert len(cluster.nodes[0].requests) == before


async def test_a_node_that_drains_is_not_asked_again_though_it_still_leads(cluster):
    async with client_of(cluster) as client:
        await client.publish(T, b"0")
        cluster.nodes[0].draining = True
        await client.publish(T, b"1")
        cluster.forwarded.clear()
        await client.publish(T, b"2")
    assert cluster.forwarded[T] == 1


async def test_a_publish_that_waits_for_its_retry_is_not_overtaken(cluster):
    async with client_of(cluster, 0, retry_delay_min_s=0.05, retry_delay_max_s=0.05) as client:
        await client.publish(T, b"0")
        cluster.nodes[0].refuse = 1
        first = asyncio.create_task(client.publish(T, b"1"))
        await cluster.until(lambda: len(cluster.nodes[0].requests) == 2, "the first is refused")
        await asyncio.gather(first, *[client.publish(T, payload) for payload in numbers(3, 2)])
    assert cluster.payloads(T) == numbers(5)


async def test_a_publish_that_a_draining_node_did_not_process_is_not_overtaken(cluster):
    node, held = cluster.nodes[0], asyncio.Event()
    async with client_of(cluster, 0, retry_delay_min_s=0.05, retry_delay_max_s=0.05) as client:
        await client.publish(T, b"0")
        node.holds.append(held)
        first = asyncio.create_task(client.publish(T, b"1"))
        await cluster.until(lambda: len(node.requests) == 2, "the first has arrived")
        second = asyncio.create_task(client.publish(T, b"2"))
        await cluster.until(lambda: node.received == 3, "the second is in flight")
        node.draining = True
        held.set()
        await first
        assert not second.done()
        await asyncio.gather(second, client.publish(T, b"3"))
    assert cluster.payloads(T) == numbers(4)


async def test_the_old_connection_stays_until_its_last_request_is_answered(cluster):
    old, held = cluster.nodes[0], [asyncio.Event(), asyncio.Event()]
    async with client_of(cluster, 0) as client:
        await client.publish(T, b"0")
        old.holds.extend(held)
        first = asyncio.create_task(client.publish(T, b"1"))
        await cluster.until(lambda: len(old.requests) == 2, "the first has arrived")
        second = asyncio.create_task(client.publish(T, b"2"))
        await cluster.until(lambda: old.received == 3, "the second is in flight")
        old.refuse = 1
        cluster.leads(T, 1, 2)
        held[0].set()
        # The client retries the first at the new leader, but the second is still in flight to the old one.
        await cluster.until(lambda: len(old.requests) == 3, "the second has arrived")
        await asyncio.wait({first}, timeout=0.05)
        assert not cluster.nodes[1].requests
        held[1].set()
        await asyncio.gather(first, second)
    assert sorted(cluster.payloads(T)) == numbers(3)
    assert cluster.nodes[1].requests == [(T, "publish")]


async def unread(node):
    """Wait until a request lies unread in a socket of this node."""
    sockets = [writer.get_extra_info("socket") for writer in node.connections]
    await eventually(lambda: select.select(sockets, [], [], 0)[0], lambda: node.requests)


@pytest.mark.parametrize("farewell", [b"", FAREWELL])
async def test_a_closed_connection_is_noticed_before_a_publish(cluster, farewell):
    async with client_of(cluster, 0) as client:
        await client.publish(T, [b"0", b"1"])
        cluster.leads(T, 1, 2)
        cluster.nodes[0].hang_up(farewell)
        await client.publish(T, [b"2", b"3"])  # Leaves in the same iteration of the loop.
    assert cluster.payloads(T) == numbers(4)


@pytest.mark.parametrize("payload", [b"1", [b"1"]])
async def test_an_unsolicited_408_that_crosses_a_publish_means_that_it_was_not_read(
    cluster, payload
):
    async with client_of(cluster, 0) as client:
        await client.publish(T, b"0", coalesce=isinstance(payload, bytes))
        cluster.leads(T, 1, 2)
        cluster.nodes[0].stop_reading()
        publishing = asyncio.create_task(client.publish(T, payload))
        await unread(cluster.nodes[0])
        cluster.nodes[0].hang_up(FAREWELL)
        assert await publishing == Published(leader=Leader(cluster.nodes[1].url, 1, 2))
    assert cluster.payloads(T) == numbers(2)


async def test_a_close_without_a_408_that_crosses_a_publish_leaves_it_unknown(cluster):
    async with client_of(cluster, 0) as client:
        await client.publish(T, b"0")
        cluster.nodes[0].stop_reading()
        publishing = asyncio.create_task(client.publish(T, b"1"))
        await unread(cluster.nodes[0])
        cluster.nodes[0].hang_up()
        with pytest.raises(OutcomeUnknown):
            await publishing


async def test_a_tail_moves_with_its_leader_and_misses_no_message(cluster):
    options = TailOptions(wait_s=0.2, idle_delay_s=5.0)
    found = []
    async with client_of(cluster) as client, client_of(cluster) as publisher:
        await publisher.publish(T, b"0")

        async def read():
            async for message in client.tail(T, options=options):
                found.append(message.payload)
                await cluster.note()

        reading = asyncio.create_task(read())
        for epoch in range(2, 6):
            number = epoch % 3
            await cluster.until(lambda: len(found) == len(cluster.payloads(T)), "the tail is there")
            cluster.nodes[cluster.leaders[T][0]].draining = True
            cluster.leads(T, number, epoch)
            cluster.nodes[number].draining = False
            await publisher.publish(T, b"%d" % (epoch - 1))
        await cluster.until(lambda: len(found) == 5, "the tail has read all")
        reading.cancel()
    assert found == numbers(5)

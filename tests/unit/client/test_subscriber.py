"""Subscribers in virtual time handle every message in order, and repeat few after a failure."""

from __future__ import annotations

import asyncio
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from broker.client import SubscriberOptions
from broker.model import Message, Snapshot
from broker.places import Place
from broker.testing.virtual_time import pass_time
from tests.kit.garbage import no_cycle_through_a_traceback
from tests.unit.client.subscribing import (
    LETTERS,
    TOPIC,
    Handled,
    World,
    crash,
    numbers,
    place_of,
    running,
)
from tests.unit.client.test_subscriber_store import Ledger


async def test_messages_are_handled_in_order_and_the_place_is_kept(world: World) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, numbers(250))
    async with running(client.subscriber(TOPIC, "mailer", handled)):
        await handled.until(250)
        await client.publish(TOPIC, numbers(10, 250))
        await handled.until(260)
    assert handled.payloads == numbers(260)
    last = (await client.poll(TOPIC))[-1].id
    cursor = await client.cursors.get(TOPIC, "mailer")
    assert (cursor.after, cursor.data, cursor.lag.messages) == (last, "", 0)
    await client.publish(TOPIC, b"later")
    async with running(client.subscriber(TOPIC, "mailer", handled)):
        await handled.until(261)
    assert handled.payloads[260:] == [b"later"]


@pytest.mark.parametrize("most", [1, 7, 100])
async def test_after_a_crash_no_more_messages_repeat_than_promised(world: World, most: int) -> None:
    client, dies = world.client(), asyncio.Event()
    seen: list[bytes] = []

    async def handler(message: Message) -> None:
        seen.append(message.payload)
        if len(seen) == 45:
            dies.set()
            await asyncio.Event().wait()

    await client.publish(TOPIC, numbers(60))
    options = SubscriberOptions(place_messages_max=most, place_interval_s=1e6)
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handler, options=options).run())
    await dies.wait()
    await crash(world, task)
    again, handled = world.client(), Handled()
    async with running(again.subscriber(TOPIC, "mailer", handled, options=options)):
        await handled.until(15)
        await pass_time(30)
    assert handled.payloads[-15:] == numbers(15, 45)
    repeated = set(seen) & set(handled.payloads)
    assert set(seen) | set(handled.payloads) == set(numbers(60))
    assert 1 <= len(repeated) <= most


async def test_a_handler_that_fails_is_tried_again_with_growing_pauses(world: World) -> None:
    client, times = world.client(), []
    loop = asyncio.get_running_loop()

    async def handler(message: Message) -> None:
        times.append(loop.time())
        if len(times) < 5:
            raise ValueError("not yet")

    await client.publish(TOPIC, b"m")
    options = {"retry_delay_min_s": 1.0, "retry_delay_max_s": 4.0}
    subscriber = client.subscriber(TOPIC, "mailer", handler, **options)
    async with running(subscriber):
        await pass_time(100)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(
        longest / 2 <= pause <= longest for pause, longest in zip(pauses, (1, 2, 4, 4), strict=True)
    )
    assert (subscriber.counts.handled, subscriber.counts.failed) == (1, 4)


async def test_a_subscriber_survives_lost_answers_and_an_unreachable_broker(world: World) -> None:
    client, handled = world.client(), Handled()
    transport, count = world.transports[-1], iter(range(10**6))
    await client.publish(TOPIC, numbers(100))
    transport.fault = lambda _: ("before", "after", None)[next(count) % 3]
    options = SubscriberOptions(place_messages_max=5)
    subscriber = client.subscriber(TOPIC, "mailer", handled, options=options)
    async with running(subscriber):
        await handled.until(50)
        transport.fault = lambda _: "before"
        await pass_time(120)
        transport.fault = lambda _: None
        await handled.until(100)
    assert (handled.payloads, subscriber.counts.lost) == (numbers(100), 0)
    assert await place_of(world) == (await client.poll(TOPIC))[-1].id


async def test_a_stop_finishes_the_message_in_work(world: World) -> None:
    client, begun, done = world.client(), asyncio.Event(), []

    async def handler(message: Message) -> None:
        begun.set()
        await pass_time(20)
        done.append(message.payload)

    await client.publish(TOPIC, numbers(3))
    async with running(client.subscriber(TOPIC, "mailer", handler)):
        await begun.wait()
    assert done == [b"0"]
    assert await place_of(world) == (await client.poll(TOPIC))[0].id


async def test_a_stop_ends_polls_and_pauses_at_once(world: World) -> None:
    client, loop = world.client(), asyncio.get_running_loop()
    failing = Handled(lambda _: True)
    slow = {"retry_delay_min_s": 1e5, "retry_delay_max_s": 1e5}
    for name, published in (("polls", []), ("tries", [b"m"])):
        if published:
            await client.publish(TOPIC, published)
        subscriber = client.subscriber(TOPIC, name, failing, **slow)
        begun_s = loop.time()
        async with running(subscriber):
            await pass_time(5)
        assert loop.time() - begun_s < 6
        assert await place_of(world, name) is None


@pytest.mark.parametrize("start", ["now", "id", "moment", None])
async def test_where_a_new_subscriber_begins(world: World, start: str | None) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"old")
    await pass_time(1)
    await client.publish(TOPIC, b"new")
    first, second = await client.poll(TOPIC)
    at = {"id": first.id, "moment": second.timestamp_ms}.get(start or "", start)
    async with running(client.subscriber(TOPIC, "mailer", handled, start=at)):
        await pass_time(1)
        await client.publish(TOPIC, b"last")
        await handled.until({"now": 1, None: 3}.get(start, 2))
    all_of = [b"old", b"new", b"last"]
    assert handled.payloads == all_of[-len(handled.payloads) :]


async def test_a_poll_in_transactions_has_a_fresh_snapshot_for_each_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub replaces the broker's service; it commits the transaction while the subscriber runs."""
    client, handled, snapshots = world.client(), Handled(), []
    pointer = world.clock.now_ms() * 1_000_000

    class Service:
        open_pointers = (pointer,)

        async def snapshot(self) -> Any:
            snapshots.append(1)
            return Snapshot(
                transaction_id=0, read_pointer=pointer + 10, in_progress=self.open_pointers
            )

    service = Service()
    monkeypatch.setattr(type(client), "transactions", service)
    await client.publish(TOPIC, b"before")
    await client.publish(TOPIC, b"uncommitted", pointer=pointer)
    await client.publish(TOPIC, b"behind")
    async with running(client.subscriber(TOPIC, "mailer", handled, transactional=True)):
        await pass_time(30)
        assert handled.payloads == [b"before"]
        service.open_pointers = ()
        await handled.until(3)
    assert handled.payloads == [b"before", b"uncommitted", b"behind"]
    assert len(snapshots) < 120  # The pauses between the snapshots grow.


async def test_a_poll_in_transactions_that_waits_has_a_fresh_snapshot_soon_after_a_publish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, handled, snapshots = world.client(), Handled(), []
    pointer = world.clock.now_ms() * 1_000_000

    class Service:
        read_pointer = pointer - 1

        async def snapshot(self) -> Any:
            snapshots.append(1)
            return Snapshot(transaction_id=0, read_pointer=self.read_pointer)

    service = Service()
    monkeypatch.setattr(type(client), "transactions", service)
    async with running(client.subscriber(TOPIC, "mailer", handled, transactional=True)):
        await pass_time(30)
        assert len(snapshots) < 10  # There is no new message, so its polls wait.
        await client.publish(TOPIC, b"begun later", pointer=pointer)
        await pass_time(0.1)
        assert handled.payloads == []
        service.read_pointer = pointer
        await pass_time(0.03)
        assert handled.payloads == [b"begun later"]


@pytest.mark.parametrize(
    "option",
    [
        {"tries_max": 0},
        {"batch_messages_max": 0},
        {"takeover_s": 0},
        {"takeover_s": 2e9},
        {"page_messages_max": 0},
        {"wait_s": 61},
        {"place_interval_s": math.inf},
    ],
)
def test_impossible_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        SubscriberOptions(**option)


async def test_a_subscriber_runs_once(world: World) -> None:
    subscriber = world.client().subscriber(TOPIC, "mailer", Handled())
    async with running(subscriber):
        await pass_time(1)
    with pytest.raises(RuntimeError, match="once"):
        await subscriber.run()


async def test_an_executor_of_the_caller_stays_usable(world: World) -> None:
    with ThreadPoolExecutor(1) as executor:
        subscriber = world.client()._subscriber(
            TOPIC, "mailer", Handled(), None, SubscriberOptions(), executor
        )
        async with running(subscriber):
            await pass_time(1)
        assert executor.submit(lambda: "works").result() == "works"


async def test_polls_that_fail_leave_no_cycle(world: World) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    async with running(client.subscriber(TOPIC, "mailer", handled)):
        await handled.until(1)
        for looked in (nullcontext, no_cycle_through_a_traceback):
            world.transports[-1].fault = lambda asked: "before" if asked.reading else None
            with looked():
                await pass_time(120)
        world.transports[-1].fault = lambda _: None


STARTS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "with a topic of letters": {"dead_letters": LETTERS},
    "now": {"start": "now"},
    "in a generation": {"start": Place(bytes(20), 1)},
    "transactional": {"transactional": True},
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("stored", [False, True], ids=["cursor", "store"])
async def test_a_subscriber_that_starts_while_the_broker_is_away_waits_for_it(
    world: World, name: str, *, stored: bool
) -> None:
    client, handled = world.client(), Handled()
    await world.create("t-dead-letters")
    store = Ledger() if stored else None
    if stored:
        await client.cursors.put(TOPIC, "m", None, expected=None)
    world.transports[-1].fault = lambda asked: None if "/cursors/" in asked.path else "before"
    async with running(client.subscriber(TOPIC, "m", handled, place=store, **STARTS[name])):
        await pass_time(200)
        world.transports[-1].fault = lambda _: None
        await pass_time(20)
        await client.publish(TOPIC, b"last")
        await handled.until(1)

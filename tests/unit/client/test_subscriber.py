"""Subscribers in virtual time lose no message, repeat few, and one bad message does not stop the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.client import CursorMoved, NewMessage, Subscriber, SubscriberOptions, TopicNotFound
from broker.client.subscription import SubscriberProgress
from broker.errors import BodyTooLarge
from broker.model import Message, Snapshot, row_id
from broker.testing.mutants import in_force
from broker.testing.virtual_time import pass_time
from tests.unit.client.subscribing import TOPIC, Handled, World

LETTERS = "default/t-dead-letters"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.create()
    yield made
    await made.close()


@asynccontextmanager
async def running(subscriber: Subscriber) -> AsyncIterator[asyncio.Task[None]]:
    """Run a subscriber, and stop it at the end."""
    task = asyncio.create_task(subscriber.run())
    yield task
    subscriber.stop()
    async with asyncio.timeout(600):
        await task


async def crash(world: World, task: asyncio.Task[None], client: int = -1) -> None:
    """Let a subscriber's process die: it and its requests have no further effect."""
    world.transports[client].dead = True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def place_of(world: World, name: str = "mailer") -> bytes | None:
    return (await world.clients[0].cursors.get(TOPIC, name)).after


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


async def test_the_place_is_written_when_its_time_has_come(world: World) -> None:
    client, gate = world.client(), asyncio.Event()
    waits = asyncio.Event()

    async def handler(message: Message) -> None:
        await pass_time(0.1)
        if message.payload == b"9":
            waits.set()
            await gate.wait()

    await client.publish(TOPIC, numbers(10))
    ids = [message.id for message in await client.poll(TOPIC)]
    async with running(client.subscriber(TOPIC, "mailer", handler, place_interval_s=0.25)):
        await waits.wait()
        assert await place_of(world) in ids[5:9]
        gate.set()


def test_when_a_place_is_due() -> None:
    options = SubscriberOptions(place_interval_s=1, place_messages_max=3)
    progress = SubscriberProgress(None, 10.0)
    assert progress.is_written
    assert not progress.is_due(options, 99)
    message = Message(row_id(1, 0) + bytes(10), b"")
    progress.handled([message])
    assert (progress.is_due(options, 10.9), progress.is_due(options, 11)) == (False, True)
    progress.handled([message, message])
    assert progress.is_due(options, 10)
    progress.written(11)
    assert (progress.is_written, progress.after) == (True, message.id)


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


async def test_a_message_that_always_fails_becomes_a_dead_letter_and_the_others_go_on(
    world: World,
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"poison")
    bad = NewMessage(b"poison", key=b"k", headers={"h": b"v"})
    await client.publish(TOPIC, [b"a", bad, b"b"])
    poison = (await client.poll(TOPIC))[1]
    subscriber = client.subscriber(TOPIC, "mailer", handled, tries_max=3)
    async with running(subscriber):
        await handled.until(2)
    assert handled.payloads == [b"a", b"b"]
    assert handled.calls.count([b"poison"]) == 3
    [letter] = await client.poll(LETTERS)
    assert (letter.payload, letter.key, letter.headers["h"]) == (b"poison", b"k", b"v")
    told = {
        name.removeprefix("dead-letter-"): value.decode()
        for name, value in letter.headers.items()
        if name != "h"
    }
    assert told.pop("time").startswith("20")
    assert told == {
        "reason": "ValueError: can't handle [b'poison']",
        "id": poison.id.hex(),
        "topic": TOPIC,
        "subscriber": "mailer",
        "tries": "3",
    }
    assert subscriber.counts.dead_letters == 1


async def test_a_batch_that_fails_is_handled_one_by_one(world: World) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"4")
    await client.publish(TOPIC, numbers(10))
    options = SubscriberOptions(batch_messages_max=3, tries_max=2)
    async with running(client.subscriber(TOPIC, "mailer", handled, options=options)):
        await handled.until(9)
    batch, first, last = [b"3", b"4", b"5"], [b"3"], [b"5"]
    assert handled.calls[:2] == [[b"0", b"1", b"2"], batch]
    assert handled.calls[2:7] == [batch, first, [b"4"], [b"4"], last]
    assert [letter.payload for letter in await client.poll(LETTERS)] == [b"4"]


async def test_a_named_dead_letter_topic_must_exist_or_is_created(world: World) -> None:
    client = world.client()
    handled = Handled(lambda _: True)
    await client.publish(TOPIC, b"m")
    named = {"dead_letters": "default/letters", "tries_max": 1}
    with pytest.raises(TopicNotFound):
        await client.subscriber(TOPIC, "mailer", handled, **named).run()
    assert handled.calls == []
    subscriber = client.subscriber(TOPIC, "mailer", handled, create_dead_letters=True, **named)
    async with running(subscriber):
        await pass_time(100)
    assert len(await client.poll("default/letters")) == 1


async def letters_after_a_crash_behind_the_letter(world: World) -> int:
    """Let a subscriber die after it published its dead letter and before it wrote its place. Return the number of letters."""
    client, published = world.client(), asyncio.Event()
    transport = world.transports[-1]

    def dies(request: Any) -> str | None:
        if "dead-letters/publish" in request.path:
            transport.dead = True
            published.set()
        return None

    transport.fault = dies
    await client.publish(TOPIC, b"poison")
    handled = Handled(lambda _: True)
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled, tries_max=2).run())
    await published.wait()
    await pass_time(1)
    await crash(world, task)
    again = world.client()
    subscriber = again.subscriber(TOPIC, "mailer", handled, tries_max=3)
    async with running(subscriber):
        await pass_time(100)
    return len(await again.poll(LETTERS))


async def test_a_crash_between_a_letter_and_the_place_makes_no_second_letter(world: World) -> None:
    assert await letters_after_a_crash_behind_the_letter(world) == 1


async def test_without_its_key_a_letter_is_published_twice(world: World) -> None:
    with in_force("letter-once"):
        assert await letters_after_a_crash_behind_the_letter(world) == 2


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


async def test_of_two_subscribers_one_works_and_the_other_takes_over(world: World) -> None:
    first, second = world.client(), world.client()
    handled, waiting = Handled(), Handled()
    one = first.subscriber(TOPIC, "mailer", handled, takeover_s=5.0)
    two = second.subscriber(TOPIC, "mailer", waiting, takeover_s=5.0)
    task = asyncio.create_task(one.run())
    await pass_time(1)
    async with running(two):
        await first.publish(TOPIC, numbers(10))
        await handled.until(10)
        await pass_time(100)
        assert (one.is_working, two.is_working, waiting.payloads) == (True, False, [])
        await crash(world, task, 0)
        await second.publish(TOPIC, numbers(10, 10))
        await waiting.until(10)
        assert two.is_working
    assert waiting.payloads == numbers(10, 10)


async def test_a_subscriber_that_stops_lets_another_begin_at_once(world: World) -> None:
    client, handled = world.client(), Handled()
    one, two = (client.subscriber(TOPIC, "mailer", handled) for _ in range(2))
    loop = asyncio.get_running_loop()
    async with running(two):
        async with running(one):
            await client.publish(TOPIC, b"a")
            await handled.until(1)
        stopped_s = loop.time()
        await client.publish(TOPIC, b"b")
        await handled.until(2)
        # A standby looks at the cursor every quarter of ``takeover_s``.
        assert loop.time() - stopped_s < 10 / 4 + 1


async def test_a_holder_that_slept_too_long_does_not_move_the_cursor(world: World) -> None:
    client, other = world.client(), world.client()
    gate, handled = asyncio.Event(), Handled()
    slept: list[bytes] = []

    async def sleeper(message: Message) -> None:
        slept.append(message.payload)
        await gate.wait()

    await client.publish(TOPIC, numbers(3))
    sleeps = client.subscriber(TOPIC, "mailer", sleeper, takeover_s=4.0, place_messages_max=1)
    async with running(sleeps):
        await pass_time(1)
        world.transports[0].fault = lambda _: "before"  # Like a paused process, it writes nothing.
        async with running(other.subscriber(TOPIC, "mailer", handled, takeover_s=4.0)):
            await handled.until(3)
            world.transports[0].fault = lambda _: None
            gate.set()
            await pass_time(5)
            assert (slept, sleeps.counts.lost, sleeps.is_working) == ([b"0"], 1, False)
            place = (await other.cursors.get(TOPIC, "mailer")).after
            assert place == (await other.poll(TOPIC))[-1].id


async def test_a_holder_that_knows_of_its_loss_hands_over_no_message(world: World) -> None:
    client, other, gate = world.client(), world.client(), asyncio.Event()
    slept: list[bytes] = []

    async def sleeper(message: Message) -> None:
        slept.append(message.payload)
        await gate.wait()

    await client.publish(TOPIC, numbers(3))
    rare = {"takeover_s": 4.0, "place_interval_s": 1e6}
    async with running(client.subscriber(TOPIC, "mailer", sleeper, **rare)):
        await pass_time(1)
        world.transports[0].fault = lambda _: "before"
        async with running(other.subscriber(TOPIC, "mailer", Handled(), takeover_s=4.0)):
            await pass_time(10)
            world.transports[0].fault = lambda _: None
            await pass_time(60)  # It tries to write now and then, and the broker refuses.
            gate.set()
            await pass_time(2)
            assert slept == [b"0"]


async def test_a_lost_answer_to_its_own_write_is_no_takeover(world: World) -> None:
    client, handled = world.client(), Handled()
    cut = {"answers": True}
    world.transports[0].fault = lambda asked: (
        "after" if asked.method == "PUT" and cut["answers"] else None
    )
    subscriber = client.subscriber(TOPIC, "mailer", handled, takeover_s=1e4)
    async with running(subscriber):
        await pass_time(
            40
        )  # For this long the client itself retries the write that takes the cursor.
        cut["answers"] = False
        await pass_time(40)
        assert subscriber.is_working
        # A renewal of the same place: its answers are lost for longer than the client retries it.
        await pass_time(1e4 / 4 - 100)
        cut["answers"] = True
        await pass_time(150)
        cut["answers"] = False
        await client.publish(TOPIC, b"m")
        await handled.until(1)
        await pass_time(40)
    assert subscriber.counts.lost == 0
    assert await place_of(world) == (await client.poll(TOPIC))[0].id


async def test_a_standby_ends_when_the_cursor_is_deleted(
    world: World,
) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    held = json.dumps({"takeover_s": 1e6})
    await client.cursors.put(TOPIC, "mailer", None, expected=None, data=held)
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled).run())
    await pass_time(20)
    await client.cursors.delete(TOPIC, "mailer")
    async with asyncio.timeout(60):
        with pytest.raises(CursorMoved, match="deleted"):
            await task
    assert handled.payloads == []


async def test_the_place_is_written_behind_each_dead_letter(world: World) -> None:
    client, gate, begun = world.client(), asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        if message.payload == b"poison":
            raise ValueError("never")
        begun.set()
        await gate.wait()

    await client.publish(TOPIC, [b"poison", b"slow"])
    options = SubscriberOptions(tries_max=1, place_interval_s=1e6)
    async with running(client.subscriber(TOPIC, "mailer", handler, options=options)):
        await begun.wait()
        assert await place_of(world) == (await client.poll(TOPIC))[0].id
        gate.set()


async def test_a_cursor_that_is_moved_under_a_subscriber_is_followed(world: World) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, numbers(3))
    subscriber = client.subscriber(TOPIC, "mailer", handled, takeover_s=2.0)
    async with running(subscriber):
        await handled.until(3)
        await pass_time(1)
        for _ in range(5):  # The subscriber may renew its hold in between.
            version = (await client.cursors.get(TOPIC, "mailer")).version
            with contextlib.suppress(CursorMoved):
                await client.cursors.put(TOPIC, "mailer", None, expected=version)
                break
        await handled.until(6)
    assert handled.payloads == numbers(3) * 2


@pytest.mark.parametrize("with_topic", [False, True])
async def test_a_cursor_that_is_deleted_ends_its_subscriber(
    world: World, *, with_topic: bool
) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"m")
    task = asyncio.create_task(client.subscriber(TOPIC, "mailer", handled, takeover_s=2).run())
    await handled.until(1)
    await pass_time(1)
    if with_topic:
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC)
    else:
        await client.cursors.delete(TOPIC, "mailer")
    async with asyncio.timeout(60):
        with pytest.raises(CursorMoved, match="deleted"):
            await task


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


class Ledger:
    """A place store of the application: the handler's work and the place change together, or not at all."""

    def __init__(self) -> None:
        self.after: bytes | None = None
        self.entries: list[bytes] = []
        self.fails_at_commit = 0

    async def load(self) -> bytes | None:
        return self.after

    @asynccontextmanager
    async def work(self, after: bytes) -> AsyncIterator[list[bytes]]:
        before, draft = self.after, []
        yield draft
        if self.after != before:
            raise CursorMoved("another was here")
        if self.fails_at_commit:
            self.fails_at_commit -= 1
            raise OSError("the database is busy")
        self.entries += draft
        self.after = after


async def test_a_place_in_the_handlers_own_transaction_counts_each_message_once(
    world: World,
) -> None:
    client, ledger, dies = world.client(), Ledger(), asyncio.Event()

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)
        if message.payload == b"5" and not dies.is_set():
            dies.set()
            await asyncio.Event().wait()
        if message.payload == b"7":
            raise ValueError("never")

    await client.publish(TOPIC, numbers(10))
    ledger.fails_at_commit = 2
    task = asyncio.create_task(client.subscriber(TOPIC, "m", handler, place=ledger).run())
    await dies.wait()
    await crash(world, task)
    again = world.client()
    subscriber = again.subscriber(TOPIC, "m", handler, place=ledger, tries_max=2)
    async with running(subscriber):
        await pass_time(100)
    assert ledger.entries == [*numbers(7), b"8", b"9"]
    assert [letter.payload for letter in await again.poll(LETTERS)] == [b"7"]
    assert ledger.after == (await again.poll(TOPIC))[-1].id
    assert await again.cursors.list(TOPIC) == []


async def test_a_store_that_was_moved_ends_the_subscriber(world: World) -> None:
    client, ledger = world.client(), Ledger()

    async def handler(message: Message, draft: list[bytes]) -> None:
        ledger.after = b"another's"

    await client.publish(TOPIC, b"m")
    with pytest.raises(CursorMoved, match="another was here"):
        await client.subscriber(TOPIC, "m", handler, place=ledger).run()
    assert ledger.entries == []


async def test_a_letter_that_is_refused_for_good_ends_the_subscriber_with_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client()
    handled = Handled(lambda payload: payload == b"poison")

    async def refuse(*_: Any, **__: Any) -> None:
        raise BodyTooLarge("too large")

    await client.publish(TOPIC, [b"a", b"poison"])
    monkeypatch.setattr(client, "publish", refuse)
    with pytest.raises(BodyTooLarge):
        await client.subscriber(TOPIC, "mailer", handled, tries_max=1).run()
    cursor = await client.cursors.get(TOPIC, "mailer")
    assert (cursor.after, cursor.data) == ((await client.poll(TOPIC))[0].id, "")


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
    [{"tries_max": 0}, {"batch_messages_max": 0}, {"takeover_s": 0}, {"page_messages_max": 0}],
)
def test_impossible_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        SubscriberOptions(**option)


async def test_unknown_cursor_data_does_not_hold_the_cursor(world: World) -> None:
    client, handled = world.client(), Handled()
    for number, data in enumerate(["text", "{}", '{"takeover_s": NaN}', json.dumps([1])]):
        name = f"c{number}"
        await client.cursors.put(TOPIC, name, None, expected=None, data=data)
        await client.publish(TOPIC, b"m")
        seen = len(handled.payloads)
        async with running(client.subscriber(TOPIC, name, handled)):
            await handled.until(seen + 1)


async def test_a_subscriber_that_waits_has_written_its_place(world: World) -> None:
    """That includes a full page: the subscriber does not know yet that it was the last one."""
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, numbers(20))
    options = SubscriberOptions(page_messages_max=10, place_messages_max=100)
    async with running(client.subscriber(TOPIC, "mailer", handled, options=options)):
        await handled.until(20)
        await pass_time(0.1)
        assert await place_of(world) == (await client.poll(TOPIC))[-1].id
        puts = [each for each in world.transports[0].requests if each.method == "PUT"]
        assert len(puts) == 2  # The first PUT takes the cursor, the second writes the place.


async def test_a_busy_store_is_retried_after_a_dead_letter(world: World) -> None:
    client, ledger = world.client(), Ledger()

    async def handler(message: Message, draft: list[bytes]) -> None:
        ledger.fails_at_commit = 2
        raise ValueError("never")

    await client.publish(TOPIC, b"poison")
    subscriber = client.subscriber(TOPIC, "m", handler, place=ledger, tries_max=3)
    async with running(subscriber):
        await pass_time(100)
    assert (subscriber.counts.dead_letters, len(await client.poll(LETTERS))) == (1, 1)
    assert ledger.after == (await client.poll(TOPIC))[0].id


async def test_a_subscriber_runs_once(world: World) -> None:
    subscriber = world.client().subscriber(TOPIC, "mailer", Handled())
    async with running(subscriber):
        await pass_time(1)
    with pytest.raises(RuntimeError, match="once"):
        await subscriber.run()

"""Each error of a handler is one failed try; the errors of a store are none."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.client import CursorMoved, Message, NewMessage, Reject, RetryLater
from broker.client.handler import FailedCall, Interrupted, Stopped
from broker.client.handler_tries import Handling
from broker.client.subscription import SubscriberCounts, SubscriberOptions, SubscriberProgress
from broker.client.tries import KeptPlace, Taken
from broker.errors import BodyTooLarge
from broker.testing.virtual_time import pass_time
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

QUICK = {"retry_delay_min_s": 0.01, "retry_delay_max_s": 0.01}


class OwnEnd(BaseException):
    """An end of user code that is no Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def awaits_a_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def raises(error: BaseException) -> None:
    raise error


class WithoutDelay(RetryLater):
    """A verdict whose own constructor forgets the delay."""

    def __init__(self, delay_s: Any = None) -> None:
        if delay_s is not None:
            self.delay_s = delay_s


ENDS: dict[str, Callable[[], Any]] = {
    "no delay": lambda: raises(WithoutDelay()),
    "a delay of text": lambda: raises(WithoutDelay("soon")),
    "a delay before": lambda: raises(WithoutDelay(-1.0)),
    "a delay without an end": lambda: raises(WithoutDelay(10**400)),
    "StopIteration": lambda: raises(StopIteration()),
    "StopAsyncIteration": lambda: raises(StopAsyncIteration()),
    "GeneratorExit": lambda: raises(GeneratorExit()),
    "BaseException": lambda: raises(OwnEnd("end")),
    "group": lambda: raises(BaseExceptionGroup("both", [OwnEnd(), ValueError()])),
    "own CancelledError": lambda: raises(asyncio.CancelledError()),
    "a cancelled task": awaits_a_cancelled_task,
    "cancels its own task": cancels_itself,
    "lone surrogate": lambda: raises(ValueError("\ud800")),
    "no text": lambda: raises(Unprintable()),
    "long text": lambda: raises(ValueError("x" * 10**6)),
    "CursorMoved": lambda: raises(CursorMoved("the handler's own cursor")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("stored", [False, True], ids=["cursor", "store"])
async def test_any_end_of_a_handler_is_one_failed_try(
    world: World, end: Callable[[], Any], *, stored: bool
) -> None:
    client, handled = world.client(), Handled()

    async def handler(message: Message, *more: Any) -> None:
        await (end() if message.payload == b"bad" else handled(message))

    await client.publish(TOPIC, [b"bad", b"good"])
    place = {"place": Ledger()} if stored else {}
    subscriber = client.subscriber(TOPIC, "s", handler, tries_max=2, **place, **QUICK)
    async with running(subscriber):
        await handled.until(1)
    assert (subscriber.counts.failed, subscriber.counts.dead_letters) == (2, 1)
    [letter] = await client.poll(LETTERS)
    assert letter.payload == b"bad"
    assert letter.headers["dead-letter-tries"] == b"2"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_what_ends_the_program_lets_the_claim_go(world: World, error: BaseException) -> None:
    client = world.client()
    await client.publish(TOPIC, [b"good", b"ends"])

    async def handler(message: Message) -> None:
        if message.payload == b"ends":
            raise error

    async def told() -> BaseException | None:
        """Return the error as a value: raised, it would end this test's loop, too."""
        try:
            await client.subscriber(TOPIC, "s", handler).run()
        except BaseException as raised:  # noqa: BLE001
            return raised
        return None

    assert await told() is error
    cursor = await client.cursors.get(TOPIC, "s")
    assert cursor.after == (await client.poll(TOPIC))[0].id
    assert "holder" not in cursor.data


async def test_a_cancelled_run_is_a_crash_also_if_the_handler_hides_it(world: World) -> None:
    client, begun = world.client(), asyncio.Event()
    await client.publish(TOPIC, numbers(2))
    seen: list[bytes] = []

    async def handler(message: Message) -> None:
        seen.append(message.payload)
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(client.subscriber(TOPIC, "s", handler).run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen, await place_of(world, "s")) == ([b"0"], None)


async def test_each_try_gets_its_own_list_and_headers(world: World) -> None:
    """A handler that consumes its list, or the headers, and then fails, gets the same messages again."""
    client, bad = world.client(), NewMessage(b"bad", headers={"trace": b"1"})
    await client.publish(TOPIC, [b"first", bad, b"last"])
    done: list[bytes] = []

    async def handler(messages: list[Message]) -> None:
        while messages:
            message = messages.pop()
            if message.payload == b"bad":
                assert isinstance(message.headers, dict)
                message.headers.clear()
                raise ValueError
            done.append(message.payload)

    subscriber = client.subscriber(TOPIC, "s", handler, batch_messages_max=3, tries_max=2, **QUICK)
    async with running(subscriber), asyncio.timeout(600):
        while not subscriber.counts.dead_letters or b"last" not in done[2:]:
            await pass_time(1)
    [letter] = await client.poll(LETTERS)
    assert (letter.payload, letter.headers["trace"]) == (b"bad", b"1")
    assert done == [b"last", b"last", b"first", b"last"], "none is lost"


async def test_a_stop_ends_run_while_a_handler_that_took_too_long_goes_on(world: World) -> None:
    client, ends, begun = world.client(), asyncio.Event(), asyncio.Event()
    await client.publish(TOPIC, b"0")

    async def handler(message: Message) -> None:
        begun.set()
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue

    subscriber = client.subscriber(TOPIC, "s", handler, handler_timeout_s=1.0)
    async with running(subscriber), asyncio.timeout(600):
        await begun.wait()
        await pass_time(10)
        assert not subscriber.is_working
    ends.set()
    assert "holder" not in (await client.cursors.get(TOPIC, "s")).data


async def test_dead_letters_in_the_topic_itself_are_refused(world: World) -> None:
    """Each letter would fail again, and make the next letter."""
    with pytest.raises(ValueError, match="dead_letters"):
        world.client().subscriber(TOPIC, "s", raises, dead_letters=TOPIC)


@pytest.mark.parametrize(
    "work", [lambda _: None, lambda _: 5, lambda _: raises], ids=["None", "5", "function"]
)
async def test_a_store_whose_work_is_no_context_is_a_type_error(world: World, work: Any) -> None:
    """Retrying it can't help."""
    client, store = world.client(), Ledger()
    store.work = work  # type: ignore[method-assign]
    await client.publish(TOPIC, b"0")

    async def handler(message: Message, draft: Any) -> None:
        raise AssertionError("not called")

    async with asyncio.timeout(600):
        with pytest.raises(TypeError, match="context"):
            await client.subscriber(TOPIC, "s", handler, place=store, **QUICK).run()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_verdict_in_a_group_is_that_verdict(world: World, nested: bool) -> None:
    """A TaskGroup of a handler raises the errors of its tasks as a group."""
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, [b"reject", b"later", b"good"])
    tries: list[bytes] = []

    async def handler(message: Message) -> None:
        tries.append(message.payload)
        error: Exception | None = {b"reject": Reject("no"), b"later": RetryLater(3)}.get(
            message.payload
        )
        if error is not None and tries.count(message.payload) < 3:
            if nested:
                error = ExceptionGroup("inner", [error])
            raise ExceptionGroup("outer", [error])
        await handled(message)

    subscriber = client.subscriber(TOPIC, "s", handler, tries_max=10, **QUICK)
    async with running(subscriber):
        await handled.until(2)
    assert tries == [b"reject", b"later", b"later", b"later", b"good"]
    assert (subscriber.counts.failed, subscriber.counts.dead_letters) == (1, 1)


class AwayStore(Ledger):
    """A store whose database is away, at a place of the call; ``away`` says how often."""

    def __init__(self, where: str, away: int) -> None:
        super().__init__()
        self.where, self.away = where, away

    def _ask(self, where: str) -> None:
        if self.where == where and self.away:
            self.away -= 1
            raise OSError("the database is away")

    async def load(self) -> bytes | None:
        self._ask("load")
        return await super().load()

    def work(self, after: bytes) -> Any:
        self._ask("work")
        return self._around(after)

    @asynccontextmanager
    async def _around(self, after: bytes) -> Any:
        self._ask("enter")
        async with super().work(after) as draft:
            yield draft
            self._ask("commit")
        self._ask("committed")


@pytest.mark.parametrize("where", ["load", "work", "enter", "commit", "committed"])
async def test_a_store_that_is_away_makes_no_dead_letter_and_no_repetition(
    world: World, where: str
) -> None:
    client, store = world.client(), AwayStore(where, 20)

    async def handler(message: Message, draft: list[bytes]) -> None:
        draft.append(message.payload)

    await client.publish(TOPIC, numbers(30))
    subscriber = client.subscriber(TOPIC, "s", handler, place=store, tries_max=1)
    async with running(subscriber):
        await pass_time(600)
    assert store.entries == numbers(30)
    assert (subscriber.counts.failed, subscriber.counts.dead_letters) == (0, 0)


async def test_a_store_that_is_away_does_not_hinder_a_stop(world: World) -> None:
    client = world.client()
    for where in ("load", "enter", "commit"):
        store = AwayStore(where, 10**9)
        await client.publish(TOPIC, b"m")
        subscriber = client.subscriber(TOPIC, f"s-{where}", Handled(), place=store)
        async with running(subscriber):
            await pass_time(50)
        assert (await client.cursors.get(TOPIC, f"s-{where}")).data == ""


async def test_a_letter_that_does_not_fit_is_told_without_its_payload(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, handled = world.client(), Handled(lambda payload: len(payload) == 100)
    publish = client.publish

    async def bounded(topic: Any, letter: Any, **options: Any) -> Any:
        if len(letter.payload) + sum(map(len, letter.headers.values())) > 300:
            raise BodyTooLarge("too large")
        return await publish(topic, letter, **options)

    await client.publish(TOPIC, [b"x" * 100, b"good"])
    large = (await client.poll(TOPIC))[0]
    monkeypatch.setattr(client, "publish", bounded)
    async with running(client.subscriber(TOPIC, "s", handled, tries_max=1)):
        await handled.until(1)
    [letter] = await client.poll(LETTERS)
    assert (letter.payload, letter.headers["dead-letter-left-out"]) == (b"", b"payload")
    assert letter.headers["dead-letter-id"] == large.id.hex().encode()


async def test_letters_go_on_when_their_topic_was_deleted(world: World) -> None:
    client, handled = world.client(), Handled(lambda payload: payload.startswith(b"bad"))
    await client.publish(TOPIC, [b"bad 1", b"good 1"])
    async with running(client.subscriber(TOPIC, "s", handled, tries_max=1)):
        await handled.until(1)
        await client.delete_topic(LETTERS)
        await client.publish(TOPIC, [b"bad 2", b"good 2"])
        await handled.until(2)
    assert [letter.payload for letter in await client.poll(LETTERS)] == [b"bad 2"]


# How long tries go on.


async def test_a_service_that_fails_for_a_while_costs_no_message_and_no_order(world: World) -> None:
    client, loop = world.client(), asyncio.get_running_loop()
    handled, until_s = Handled(), loop.time() + 300

    async def handler(message: Message) -> None:
        if loop.time() < until_s:
            raise ConnectionError("the service is away")
        await handled(message)

    await client.publish(TOPIC, numbers(20))
    subscriber = client.subscriber(TOPIC, "s", handler, retry_delay_max_s=5.0)
    async with running(subscriber):
        await handled.until(20)
        assert loop.time() < until_s + 6
    assert handled.payloads == numbers(20)
    assert subscriber.counts.dead_letters == 0
    assert subscriber.counts.failed > 300 / 5


async def test_reject_makes_a_dead_letter_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    client, handled = world.client(), Handled()

    async def handler(message: Message) -> None:
        if message.payload == b"bad":
            raise Reject("no such order")
        await handled(message)

    await client.publish(TOPIC, [b"bad", b"good"])
    subscriber = client.subscriber(TOPIC, "s", handler)
    async with running(subscriber):
        await handled.until(1)
    [letter] = await client.poll(LETTERS)
    assert letter.headers["dead-letter-reason"] == b"Reject: no such order"
    assert (letter.headers["dead-letter-tries"], subscriber.counts.failed) == (b"1", 1)
    [warning] = [record for record in caplog.records if "Reject" in record.getMessage()]
    assert (warning.exc_info, "is a dead letter" in warning.getMessage()) == (None, True)


async def test_reject_of_a_batch_leaves_the_verdict_to_each_message(world: World) -> None:
    client, handled = world.client(), Handled()

    async def handler(batch: list[Message]) -> None:
        if any(message.payload == b"2" for message in batch):
            raise Reject("2 is bad")
        await handled(batch)

    await client.publish(TOPIC, numbers(4))
    async with running(client.subscriber(TOPIC, "s", handler, batch_messages_max=10)):
        await handled.until(3)
    assert handled.payloads == [b"0", b"1", b"3"]
    assert [letter.payload for letter in await client.poll(LETTERS)] == [b"2"]


async def test_retry_later_is_no_try(world: World) -> None:
    client, handled, loop = world.client(), Handled(), asyncio.get_running_loop()
    times: list[float] = []

    async def handler(message: Message) -> None:
        times.append(loop.time())
        if len(times) <= 5:
            raise RetryLater(60)
        await handled(message)

    await client.publish(TOPIC, b"m")
    subscriber = client.subscriber(TOPIC, "s", handler, tries_max=1)
    async with running(subscriber):
        await handled.until(1)
    assert [round(later - times[0]) for later in times] == [0, 60, 120, 180, 240, 300]
    assert (subscriber.counts.failed, subscriber.counts.dead_letters) == (0, 0)


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf")])
def test_an_impossible_delay_is_refused(delay_s: float) -> None:
    with pytest.raises(ValueError, match="delay_s"):
        RetryLater(delay_s)


async def test_a_handler_that_takes_too_long_has_failed(world: World) -> None:
    client, handled, cancelled = world.client(), Handled(), []

    async def handler(message: Message) -> None:
        if message.payload == b"slow":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(1)
        await handled(message)

    await client.publish(TOPIC, [b"slow", b"good"])
    subscriber = client.subscriber(TOPIC, "s", handler, handler_timeout_s=5, tries_max=2, **QUICK)
    async with running(subscriber):
        await handled.until(1)
    [letter] = await client.poll(LETTERS)
    assert letter.headers["dead-letter-reason"] == b"TookTooLong: it took longer than 5 s"
    assert (len(cancelled), subscriber.counts.failed) == (2, 2)


async def test_a_handler_that_does_not_end_loses_its_place_to_a_standby(world: World) -> None:
    client, handled, gate = world.client(), Handled(), asyncio.Event()

    async def stubborn(message: Message) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    await client.publish(TOPIC, numbers(3))
    stuck = client.subscriber(TOPIC, "s", stubborn, handler_timeout_s=5)
    async with running(stuck), running(world.client().subscriber(TOPIC, "s", handled)) as standby:
        await handled.until(3)
        assert not stuck.is_working
        assert not standby.done()
        gate.set()
    assert handled.payloads == numbers(3)
    assert stuck.counts.handled == 0


# Tries are counted at the broker.


async def test_the_count_of_tries_outlives_a_stop_and_a_crash(world: World) -> None:
    client, calls, failed = world.client(), [], asyncio.Event()

    async def handler(message: Message) -> None:
        calls.append(message.payload)
        failed.set()
        raise ValueError("never")

    await client.publish(TOPIC, b"bad")
    slow = {"tries_max": 6, "retry_delay_min_s": 1e6, "retry_delay_max_s": 1e6}
    for number in range(6):
        failed.clear()
        last = world.client()
        task = asyncio.create_task(last.subscriber(TOPIC, "s", handler, **slow).run())
        await failed.wait()
        await pass_time(1)
        if number % 2:
            await crash(world, task)
        elif number < 5:
            assert (
                json.loads((await client.cursors.get(TOPIC, "s")).data)["tried"]["tries"]
                == number + 1
            )
            await crash(world, task)
    client = world.client()
    async with running(client.subscriber(TOPIC, "s", handler, **slow)):
        await pass_time(100)
    assert len(calls) == 6
    [letter] = await client.poll(LETTERS)
    assert letter.headers["dead-letter-tries"] == b"6"


@pytest.mark.parametrize(("batch", "unwritten"), [(None, 100), (4, 100), (None, 1_000_000)])
async def test_a_message_that_kills_its_process_is_found_out(
    world: World, batch: int | None, unwritten: int
) -> None:
    """The killer comes after messages whose place is not written; none of them is blamed."""
    first, deaths = world.client(), 0
    await first.publish(TOPIC, [*numbers(10), b"killer", *numbers(5, 10)])
    handled = Handled()
    options: dict[str, Any] = {"tries_max": 3, "place_interval_s": 1e6, "batch_messages_max": batch}
    options["place_messages_max"] = unwritten
    while True:
        client, dies = world.client(), asyncio.Event()

        async def handler(given: Any, dies: asyncio.Event = dies) -> None:
            if b"killer" in [each.payload for each in (given if batch else [given])]:
                dies.set()
                await asyncio.Event().wait()
            await handled(given)

        task = asyncio.create_task(client.subscriber(TOPIC, "s", handler, **options).run())
        waits = [asyncio.create_task(dies.wait()), asyncio.create_task(handled.until(15))]
        while not dies.is_set() and len(set(handled.payloads)) < 15:
            await pass_time(1)
        for each in waits:
            each.cancel()
        if not dies.is_set():
            break
        deaths += 1
        assert deaths < 20
        await crash(world, task)
    task.cancel()
    assert set(handled.payloads) == set(numbers(15))
    [letter] = await client.poll(LETTERS)
    assert letter.payload == b"killer"
    # The first death shows that a message may kill; the count begins then. A batch is tried as a whole before.
    assert deaths == (4 if batch is None else 7)


# The shape of a handler.


async def never() -> None:
    """Be called too early."""


async def generator(message: Message) -> Any:
    yield message


class Place:
    def load(self) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (None, {}),
        (never(), {}),
        (lambda: None, {}),
        (lambda message, more: None, {}),
        (lambda *, message: None, {}),
        (lambda message: None, {"place": Ledger()}),
        (generator, {}),
        (lambda message, place: None, {"place": Place()}),
    ],
)
async def test_a_handler_of_the_wrong_shape_is_refused_at_the_start(
    world: World, handler: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        world.client().subscriber(TOPIC, "s", handler, **options)
    if asyncio.iscoroutine(handler):
        handler.close()


@pytest.mark.parametrize(
    "data",
    [
        '{"tried": {"id": "00", "messages": 1e999, "tries": 1}}',
        '{"holder": "x", "takeover_s": 1' + "0" * 400 + "}",
        '{"holder": "x", "takeover_s": NaN}',
    ],
    ids=["endless messages", "no double", "NaN"],
)
async def test_data_of_a_cursor_that_no_subscriber_wrote_count_as_none(
    world: World, data: str
) -> None:
    client, handled = world.client(), Handled()
    await client.publish(TOPIC, b"0")
    await client.cursors.put(TOPIC, "s", None, expected=None, data=data)
    async with running(client.subscriber(TOPIC, "s", handled)):
        await handled.until(1)


async def test_an_interrupt_in_the_handlers_thread_is_no_try() -> None:
    class Thread:
        async def hand(self, messages: Any, work: Any) -> FailedCall | None:
            if written:
                raise Interrupted
            return FailedCall(ValueError("once"))

    written: list[int] = []

    async def write(progress: SubscriberProgress) -> None:
        assert progress.tried is not None
        written.append(progress.tried.tries)
        progress.written(0.0)

    async def pause(seconds: float) -> None:
        """Go on at once."""

    options, counts = SubscriberOptions(tries_max=3), SubscriberCounts()
    thread: Any = Thread()
    handling = Handling(
        "s", thread, None, options, counts, write=write, pause=pause, rng=random.Random(1)
    )
    progress = SubscriberProgress(Taken(KeptPlace(None), 1, 0), 0.0)
    with pytest.raises(Stopped):
        await handling.handle(progress, [Message(bytes(20), b"m")])
    assert written == [1, 2]  # The second try was counted before it began.
    assert progress.place.tried is not None
    assert progress.place.tried.tries == 1

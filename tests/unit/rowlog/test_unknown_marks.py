"""Marks that find their claim gone, and marks and claims whose answer was lost, on a message that changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.errors import Fenced
from broker.rowlog import Message, RowLog, Subscription
from broker.rowlog.cell_keys import MessageId
from broker.rowlog.cells import decode_state
from broker.rowlog.execution_state import Claimer, State, claim, done
from broker.rowlog.row_table import Cells, WriteUnknown
from broker.rowlog.setup import Settings
from broker.testing.virtual_time import pass_time
from tests.unit.rowlog.world import (
    ROW,
    TABLE,
    Epoch,
    Heard,
    Process,
    World,
    attempt,
    until,
    virtual,
)

Between = Callable[[RowLog], Awaitable[None]]
FIRST = 1


def lose_a_mark(
    process: Process,
    between: Callable[[], Awaitable[None]],
    *,
    made: bool,
    answer: bool | None,
    claims: bool = False,
) -> None:
    """Lose the answer to the process's first mark for "a", or to its first claim.

    ``between`` happens before the next call of the process.
    """
    original = process.rows.check_and_put
    left = [1]

    async def check_and_put(
        table: bytes, row: bytes, column: bytes, expected: bytes, value: bytes
    ) -> bool:
        is_mark = table == TABLE and bool(decode_state(value).parts["a"].token) is claims
        if not is_mark or not left:
            return await original(table, row, column, expected, value)
        left.clear()
        if made:
            assert await original(table, row, column, expected, value)
        await between()
        if answer is None:
            raise WriteUnknown("no answer in time")
        return answer

    process.rows.check_and_put = check_and_put  # type: ignore[method-assign]


async def the_first(log: RowLog) -> MessageId:
    (message,) = [each.id for each in await log.messages.open(ROW) if each.id.seq == FIRST]
    return message


async def removed(other: RowLog) -> None:
    """Another process's sweep deletes what is finished."""
    await other.verify(mend=True)


async def claimed_for_another_subscription(other: RowLog) -> None:
    """The processor of "b" takes it."""

    def by_b(state: State) -> State:
        return claim(state, "b", Claimer(b"p12345678", 0, epoch=9), 0, Settings())

    await other.messages.change(ROW, await the_first(other), by_b)


async def taken_over(other: RowLog, *, is_done: bool) -> None:
    """A successor raises the epoch and claims it; it may also have done it."""
    by = Claimer(b"p12345678", 0, await other.meta.raise_epoch("mq.all", "successor"))

    def change(state: State) -> State:
        state = claim(state, "a", by, 0, Settings())
        return done(state, "a", by.token) if is_done else state

    first = await the_first(other)
    state = await other.messages.change(ROW, first, change)
    if state.is_finished:
        await other.messages.remove(ROW, [first])


async def unsubscribed(other: RowLog) -> None:
    """Another process removes the subscription, and the message stays for "b"."""
    await other.unsubscribe("a")


@pytest.mark.parametrize("made", [True, False])
def test_a_removed_subscription_counts_as_done(made: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        process = await world.process()
        log, other = process.log, (await world.process()).log
        for name in ("a", "b"):
            await log.subscribe(Subscription(name))
        log.listen("a", Heard())
        lose_a_mark(process, lambda: unsubscribed(other), made=made, answer=None)
        await log.put(ROW)
        assert (await attempt(log)).is_done

    test()


@pytest.mark.parametrize("answer", [True, False], ids=["done", "failed"])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["deleted", "stays-for-another"])
def test_unsubscribing_while_a_listener_runs_costs_no_leadership(
    names: list[str], answer: bool
) -> None:
    @virtual
    async def test(world: World) -> None:
        log = await world.log("a", "b", "slow")
        heard = Heard(answer)
        heard.gate = asyncio.Event()
        log.listen("a", heard)
        begun, cleaned_up = asyncio.Event(), asyncio.Event()

        async def slow_to_end(_: Message) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await cleaned_up.wait()

        log.listen("slow", slow_to_end)
        await log.start()
        await log.put(ROW, subscriptions=names)
        await log.put(b"other", subscriptions=["slow"])
        await until(lambda: heard.seqs == [1] and begun.is_set())
        # While the processor of "slow" ends, that of "a" goes on.
        await log.pause("slow")
        await pass_time(1)
        await log.unsubscribe("a")
        heard.gate.set()
        await pass_time(1)
        assert heard.ended == 1
        cleaned_up.set()
        await pass_time(10)
        assert await log.meta.epoch("mq.all") == 1, "it still leads in its first epoch"
        assert {key[1:2] for key in world.entries()} == {*map(str.encode, names), b"s"} - {b"a"}

    test()


@virtual
async def test_a_call_is_done_if_its_subscription_was_removed_meanwhile(world: World) -> None:
    log = await world.log("a")
    heard = Heard()
    heard.gate = asyncio.Event()
    log.listen("a", heard)
    message = await log.put(ROW)
    assert message is not None
    processing = asyncio.create_task(log.process(message))
    await until(lambda: heard.seqs == [1])
    await log.unsubscribe("a")
    heard.gate.set()
    assert await processing


@pytest.mark.parametrize("answer", [None, False], ids=["no-answer", "a-repeated-call-says-no"])
@pytest.mark.parametrize(
    ("between", "listener"),
    [
        (removed, True),
        (claimed_for_another_subscription, True),
        (claimed_for_another_subscription, False),
    ],
    ids=["done-and-removed", "done-and-changed", "failed-and-changed"],
)
def test_a_mark_that_was_made_costs_no_leadership(
    between: Between, listener: bool, answer: bool | None
) -> None:
    @virtual
    async def test(world: World) -> None:
        process = await world.process()
        log, other = process.log, (await world.process()).log
        for name in ("a",) if between is removed else ("a", "b"):
            await log.subscribe(Subscription(name))
        heard = Heard(listener)
        log.listen("a", heard)
        lose_a_mark(process, lambda: between(other), made=True, answer=answer)
        await log.start()
        await log.put(ROW)
        await log.put(ROW)
        await until(lambda: heard.seqs == ([1, 2] if listener else [1, 1, 2]))
        await pass_time(5)
        assert await log.meta.epoch("mq.all") == 1, "it still leads in its first epoch"
        assert log.figures.values["retries", "a"] == (0 if listener else 1)
        assert not any(b"\0a\0" in key[:4] for key in world.entries())

    test()


@virtual
async def test_a_fenced_processor_stops_also_if_its_successor_is_done_with_the_message(
    world: World,
) -> None:
    """The state says nothing of the successor any more; the resource's epoch does."""
    process = await world.process()
    log, other = process.log, (await world.process()).log
    await log.subscribe(Subscription("a"))
    epochs: list[int] = []

    async def listen(message: Message) -> None:
        (found,) = [each for each in await log.messages.open(ROW) if each.id == message.id]
        epochs.append(found.state.parts["a"].epoch)

    log.listen("a", listen)
    lose_a_mark(process, lambda: taken_over(other, is_done=True), made=False, answer=None)
    await log.start()
    await log.put(ROW)
    await log.put(ROW)
    await until(lambda: len(epochs) == 2)
    assert epochs == [1, 3], "it began the second message as another epoch's processor"


@virtual
async def test_a_processor_stops_that_finds_the_claim_of_a_later_epoch(world: World) -> None:
    process = await world.process()
    log, other = process.log, (await world.process()).log
    await log.subscribe(Subscription("a"))
    log.listen("a", Heard())
    lose_a_mark(process, lambda: taken_over(other, is_done=False), made=False, answer=None)
    await log.put(ROW)
    with pytest.raises(Fenced, match="took this message over"):
        await attempt(log, Epoch(1))


@pytest.mark.parametrize("made", [True, False], ids=["made", "taken-over"])
def test_a_call_whose_mark_is_unknown_says_done_only_if_it_is(made: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        process = await world.process()
        log, other = process.log, (await world.process()).log
        await log.subscribe(Subscription("a"))
        log.listen("a", Heard())

        async def between() -> None:
            if made:
                return await removed(other)
            await pass_time(31)  # A processor may take it over from then on.
            return await taken_over(other, is_done=False)

        lose_a_mark(process, between, made=made, answer=None)
        message = await log.put(ROW)
        assert message is not None
        assert await log.process(message) is made

    test()


@virtual
async def test_a_call_whose_claim_was_made_without_an_answer_goes_on(world: World) -> None:
    process = await world.process()
    log, other = process.log, (await world.process()).log
    for name in ("a", "b"):
        await log.subscribe(Subscription(name))
    log.listen("a", Heard())

    async def between() -> None:
        await claimed_for_another_subscription(other)

    lose_a_mark(process, between, made=True, answer=None, claims=True)
    await log.put(ROW)
    assert (await attempt(log)).is_done


@pytest.mark.parametrize("listener", [True, False], ids=["done", "failed"])
def test_a_message_that_readings_miss_is_not_deleted(listener: bool) -> None:
    @virtual
    async def test(world: World) -> None:
        process = await world.process()
        log = process.log
        for name in ("a", "b"):
            await log.subscribe(Subscription(name))
        log.listen("a", Heard(listener))
        get = process.rows.get

        async def miss() -> None:
            async def missing(*_: object) -> dict[bytes, Cells]:
                return {}

            process.rows.get = missing  # type: ignore[assignment]

        lose_a_mark(process, miss, made=False, answer=None)
        message = await log.put(ROW)
        assert message is not None
        await log.process(message)
        process.rows.get = get  # type: ignore[method-assign]
        (found,) = await log.messages.open(ROW)
        assert found.state.is_open("b")

    test()

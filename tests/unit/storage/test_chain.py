"""Compare-and-sets whose answers can't be trusted."""

import asyncio

import pytest

from broker.errors import Fenced, OutcomeUnknown, PayloadsSealed, StorageCorrupt
from broker.storage import controlvalue
from broker.storage.cells import CONTROL_COLUMN, Cell, RowCells, Table
from broker.storage.control import Control, confirmed
from broker.storage.keys import LogId, control_key
from broker.testing.clock import pass_time
from tests.unit.storage.scripted_tables import LOG, batch, ids_ms, run


@pytest.mark.parametrize("word", ["do and lie", "do and fail", "fail"])
def test_an_unclear_compare_and_set_is_resolved(word):
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms in (10, 20, 30):
            cells.cas = [word]
            await store.append(hold, batch(ms))
        assert await ids_ms(store) == [10, 20, 30]
        cells.cas = [word]
        assert (await store.claim(LOG, "a")).epoch == 2

    run(story)


def test_a_compare_and_set_that_stays_unclear_is_unknown_and_ends_the_hold():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.cas = ["fail"] * 1000
        with pytest.raises(OutcomeUnknown):
            await store.append(hold, batch(10))
        cells.cas.clear()
        assert hold.done
        with pytest.raises(Fenced):
            await store.append(hold, batch(20))

    run(story)


def old_answers(cells, *answers):
    """Have the next reads of single rows answered so; None as it is."""
    get, left = cells.get, list(answers)

    async def old_get(table, key):
        answer = left.pop(0) if left else None
        return await get(table, key) if answer is None else answer

    cells.get = old_get


def test_an_answer_from_before_what_it_was_built_upon_is_no_move():
    """Of a claim that was applied unseen: taken for a move, it would be fought until the deadline."""

    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        before = await cells.get(Table.MESSAGES, control_key(LOG))
        await store.append(hold, batch(20))
        cells.cas = ["do and fail"]
        old_answers(cells, None, before)
        began = asyncio.get_running_loop().time()
        assert (await other.claim(LOG, "b")).epoch == 2
        assert asyncio.get_running_loop().time() - began < 1

    run(story)


def test_what_was_sent_before_an_old_answer_and_refused_after_it_is_unknown():
    payloads = LogId(LOG.topic, LOG.generation, 5)

    async def story(cells, store, other):
        first = await store.open_payloads(await store.claim(LOG, "a"), 5)
        await store.append(first, batch(10))
        before = await cells.get(Table.PAYLOADS, control_key(payloads))
        await store.append(first, batch(20))
        second = await other.open_payloads(await other.claim(LOG, "b"), 5)
        cells.cas = ["do and fail", *["refuse"] * 1000]
        old_answers(cells, before)
        with pytest.raises(OutcomeUnknown):
            await other.append(second, batch(30))
        assert await ids_ms(store, payloads) == [10, 20, 30]

    run(story)


def test_a_damaged_control_row_stops_everything():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        good = controlvalue.encode(hold.control)
        value = good[:-1] + bytes([good[-1] ^ 1])
        table = cells.tables[Table.MESSAGES]
        table.put(RowCells(control_key(LOG), {CONTROL_COLUMN: Cell(1 << 40, value)}))
        with pytest.raises(StorageCorrupt):
            await store.head(LOG)
        with pytest.raises(StorageCorrupt):
            await store.claim(LOG, "a")

    run(story)


@pytest.mark.parametrize("take", ["claim", "tombstone"])
def test_a_busy_leader_does_not_keep_others_out(take):
    """A log whose control row moves with every commit can still be claimed, and deleted."""

    async def story(cells, store, other):
        get, cas = cells.get, cells.check_and_put

        async def slow_get(*arguments):
            await pass_time(0.001)
            return await get(*arguments)

        async def slow_cas(*arguments):
            await pass_time(0.0005)
            return await cas(*arguments)

        cells.get, cells.check_and_put = slow_get, slow_cas
        hold = await store.claim(LOG, "a")

        async def lead() -> int:
            for ms in range(10, 100_000):
                try:
                    await store.append(hold, batch(ms))
                    await pass_time(0.0012)
                except Fenced:
                    return ms
            raise AssertionError("never fenced")

        leading = asyncio.ensure_future(lead())
        await pass_time(0.1)
        if take == "claim":
            await other.claim(LOG, "b")
        else:
            await other.tombstone(LOG, "b")
        assert await leading > 20

    run(story)


def _counting(made: list[Control | None]):
    def build(current: Control | None, token: bytes) -> Control:
        made.append(current)
        return confirmed(current, token)

    return build


def test_what_was_built_ahead_is_what_is_sent():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        made = []
        build = _counting(made)
        hold.chain.build_ahead(build)
        assert len(made) == 1
        sent = await hold.chain.change(build)
        assert len(made) == 1
        # Once: the same build again starts from what it wrote.
        again = await hold.chain.change(build)
        assert made[1] is sent
        assert (await store.head(LOG)).token == again.token > sent.token

    run(story)


def test_what_was_built_ahead_of_another_change_is_built_anew():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        made = []
        build = _counting(made)
        hold.chain.build_ahead(build)
        between = await hold.chain.change(_counting([]))
        await hold.chain.change(build)
        assert made[1] is between
        assert not hold.done

    run(story)


def test_nothing_is_built_ahead_while_a_change_is_under_way_nor_after_the_end():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        made = []
        cells.cas = ["fail"]
        changing = asyncio.ensure_future(hold.chain.change(_counting([])))
        await pass_time(0)
        assert hold.chain.is_busy
        hold.chain.build_ahead(_counting(made))
        await changing
        hold.chain.end()
        hold.chain.build_ahead(_counting(made))
        assert made == []

    run(story)


def test_what_a_build_raises_ahead_is_raised_in_its_turn():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")

        def build(current: Control | None, token: bytes) -> Control:
            raise PayloadsSealed("closed")

        hold.chain.build_ahead(build)
        with pytest.raises(PayloadsSealed):
            await hold.chain.change(build)
        await store.append(hold, batch(10))

    run(story)

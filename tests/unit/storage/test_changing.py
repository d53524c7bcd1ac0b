"""Appends and rollbacks over tables that misbehave, one behaviour at a time."""

import asyncio

import pytest

from broker.errors import Fenced, OutcomeUnknown, Unavailable
from broker.model import row_id
from broker.testing.clock import pass_time
from tests.unit.storage.scripted_tables import LOG, batch, fail, ids_ms, refuse, run


def test_a_batch_that_was_committed_just_before_a_takeover_is_acknowledged():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        cells.cas = ["do and fail"]
        original = cells.get
        claims = []

        async def get(table, key):
            if not claims:
                claims.append(1)
                await other.claim(LOG, "b")
            return await original(table, key)

        cells.get = get
        await store.append(hold, batch(10))
        assert hold.done
        assert await ids_ms(other) == [10]

    run(story)


def test_a_batch_that_a_takeover_came_before_is_certainly_not_stored():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        await other.claim(LOG, "b")
        with pytest.raises(Fenced):
            await store.append(hold, batch(20))
        assert await ids_ms(other) == [10]

    run(story)


def test_a_row_write_that_fails_is_repeated_unchanged():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.puts = [fail, fail]
        await store.append(hold, batch(10, 11))
        cells.after_puts = [fail]
        await store.append(hold, batch(20, 21))
        assert await ids_ms(store) == [10, 11, 20, 21]

    run(story)


def test_rows_that_stay_unconfirmed_end_the_hold_and_never_count():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.after_puts = [fail] * 1000
        with pytest.raises(Unavailable):
            await store.append(hold, batch(10))
        cells.after_puts.clear()
        assert hold.done
        again = await store.claim(LOG, "a")
        await store.append(again, batch(20))
        assert await ids_ms(store) == [20]

    run(story)


def test_rows_of_the_next_batch_are_sent_while_the_one_before_is_committed():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        order = []
        put, cas = cells.put, cells.check_and_put

        async def slow_cas(*arguments):
            order.append("cas begins")
            await pass_time(1)
            order.append("cas ends")
            return await cas(*arguments)

        async def noted_put(*arguments, **options):
            order.append("put")
            await put(*arguments, **options)

        cells.put, cells.check_and_put = noted_put, slow_cas
        await asyncio.gather(store.append(hold, batch(10)), store.append(hold, batch(20)))
        assert order == ["put", "cas begins", "put", "cas ends", "cas begins", "cas ends"]
        assert await ids_ms(store) == [10, 20]

    run(story)


def test_a_batch_whose_caller_is_gone_ends_the_hold():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.gate = asyncio.Event()
        task = asyncio.ensure_future(store.append(hold, batch(10)))
        await pass_time(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert hold.done

    run(story)


def test_a_rollback_by_a_fenced_leader_is_not_answered_even_if_it_finds_nothing():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        later = await other.claim(LOG, "b")
        await other.append(later, batch(10, pointer=7))
        with pytest.raises(Fenced):
            await store.negate(hold, row_id(10, 0), row_id(10, 0), 7)

    run(story)


def test_a_payload_log_opened_by_an_old_answer_takes_no_ids_below_its_pointer():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        first = await store.open_payloads(hold, 7)
        await store.append(first, batch(100))
        later = await other.claim(LOG, "b")
        get = cells.get

        async def absent(*_):
            return None

        cells.get = absent
        opened = await other.open_payloads(later, 7)
        cells.get = get
        with pytest.raises(Fenced):
            await other.append(opened, batch(50))
        assert later.done
        assert await ids_ms(other, opened.log) == [100]

    run(story)


def test_a_rollback_whose_caller_is_gone_ends_the_hold():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10, pointer=7))
        cells.gate = asyncio.Event()
        task = asyncio.ensure_future(store.negate(hold, row_id(10, 0), row_id(10, 0), 7))
        await pass_time(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert hold.done

    run(story)


def test_a_batch_of_which_nothing_was_sent_is_refused_and_the_hold_goes_on():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.puts = [refuse] * 1000
        with pytest.raises(Unavailable):
            await store.append(hold, batch(10))
        cells.puts.clear()
        assert not hold.done
        cells.puts = [refuse]
        await store.append(hold, batch(20))
        assert await ids_ms(store) == [20]
        assert hold.epoch == 1

    run(story)


def test_a_batch_of_which_one_attempt_was_sent_ends_the_hold():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.puts = [fail, *[refuse] * 1000]
        with pytest.raises(Unavailable):
            await store.append(hold, batch(10))
        assert hold.done

    run(story)


def test_a_batch_whose_second_piece_was_never_sent_ends_the_hold():
    async def story(cells, store, _):
        cells.put_bytes_max = 1
        hold = await store.claim(LOG, "a")
        cells.puts = [lambda: None, *[refuse] * 1000]
        with pytest.raises(Unavailable):
            await store.append(hold, batch(10, 20))
        assert hold.done

    run(story)


def test_a_commit_that_was_never_sent_is_refused_but_its_rows_end_the_hold():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.cas = ["refuse"] * 1000
        with pytest.raises(Unavailable):
            await store.append(hold, batch(10))
        cells.cas.clear()
        assert hold.done
        again = await store.claim(LOG, "a")
        await store.append(again, batch(20))
        assert await ids_ms(store) == [20]

    run(story)


def test_a_change_that_was_never_sent_is_refused_and_the_hold_goes_on():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10, pointer=7))
        cells.cas = ["refuse"] * 1000
        with pytest.raises(Unavailable):
            await store.raise_floor(hold, row_id(5, 0))
        with pytest.raises(Unavailable):
            await store.negate(hold, row_id(10, 0), row_id(10, 0), 8)
        cells.cas.clear()
        cells.puts = [refuse] * 1000
        with pytest.raises(Unavailable):
            await store.negate(hold, row_id(10, 0), row_id(10, 0), 7)
        cells.puts.clear()
        assert not hold.done
        await store.raise_floor(hold, row_id(5, 0))
        assert await store.negate(hold, row_id(10, 0), row_id(10, 0), 7) == 1
        cells.cas = ["refuse"] * 1000
        with pytest.raises(OutcomeUnknown):
            await store.negate(hold, row_id(10, 0), row_id(10, 0), 7)
        assert hold.done

    run(story)


def test_a_commit_of_which_one_attempt_was_sent_is_unknown():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        cells.cas = ["fail", *["refuse"] * 1000]
        with pytest.raises(OutcomeUnknown):
            await store.append(hold, batch(10))
        assert hold.done

    run(story)

"""Claims, the ranges they leave, and handoffs."""

import pytest

from broker.errors import BrokerError
from broker.model import row_id
from broker.storage.control import RANGES_MAX
from tests.unit.storage.scripted_tables import LOG, batch, ids_ms, run


def test_many_takeovers_move_the_oldest_ranges_to_side_rows():
    async def story(cells, store, other):
        kept = []
        for number in range(3 * RANGES_MAX):
            hold = await (store, other)[number % 2].claim(LOG, "a")
            await (store, other)[number % 2].append(hold, batch(10 * number + 10))
            kept.append(10 * number + 10)
        head = await store.head(LOG)
        assert head is not None
        assert head.older
        assert len(head.ranges) <= RANGES_MAX
        assert await ids_ms(store) == kept

    run(story)


def test_old_ranges_go_with_the_floor_and_the_window():
    async def story(cells, store, _):
        for number in range(100):
            hold = await store.claim(LOG, "a", keep_after=row_id(10 * number, 0))
            await store.append(hold, batch(10 * number + 10))
            await store.raise_floor(hold, row_id(10 * number, 0))
        head = await store.head(LOG)
        assert head is not None
        assert len(head.ranges) <= 4
        assert not head.older
        assert await ids_ms(store) == [990, 1000]

    run(story)


def test_a_release_fails_quietly_where_the_log_was_lost():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        await other.claim(LOG, "b")
        assert not await store.release(hold)
        assert hold.done

    run(story)


def test_a_claim_tells_when_the_server_wrote_it_and_what_was_before():
    async def story(cells, store, other):
        assert (await store.claim(LOG, "a")).claimed_server_ms is None
        cells.tags_are_times = True
        first = await store.claim(LOG, "a")
        second = await other.claim(LOG, "b")
        assert (first.before_server_ms, first.claimed_server_ms) == (0, 1)
        assert (second.before_server_ms, second.claimed_server_ms) == (1, 2)

    run(story)


def test_a_claim_that_was_fenced_at_once_tells_no_time():
    async def story(cells, store, other):
        cells.tags_are_times = True
        get, gets = cells.get, []

        async def late_get(table, key):
            gets.append(key)
            if len(gets) == 2:
                await other.claim(LOG, "b")
            return await get(table, key)

        cells.get = late_get
        hold = await store.claim(LOG, "a")
        assert hold.before_server_ms is None
        assert hold.claimed_server_ms is None

    run(story)


def test_a_holder_is_told_what_time_it_is_there_by_a_write_that_changes_nothing():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        assert await store.server_ms(hold) is None
        cells.tags_are_times = True
        before = await store.head(LOG)
        told = await store.server_ms(hold)
        after = await store.head(LOG)
        assert told is not None
        assert await store.server_ms(hold) > told
        assert after._replace(token=before.token) == before
        assert after.token != before.token
        await store.append(hold, batch(20))
        await other.claim(LOG, "b")
        with pytest.raises(BrokerError):
            await store.server_ms(hold)
        assert hold.done

    run(story)

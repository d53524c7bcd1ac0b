"""Claims, the ranges they leave, and handoffs."""

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

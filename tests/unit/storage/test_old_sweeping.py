"""What is removed, slice by slice."""

import pytest

from broker.model import row_id, timestamp_of
from broker.storage import sweeping
from broker.storage.cells import CellsError, Table
from broker.storage.keys import IDEMPOTENCY, control_key, side_prefix
from broker.storage.ports import Batch, Segment, SideRow
from tests.unit.storage.scripted_tables import LOG, batch, ids_ms, run


def test_side_rows_of_a_batch_are_swept_with_their_window_alone():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms in (10, 20, 30):
            side = [SideRow(IDEMPOTENCY, b"k" * 16, row_id(ms, 0), b"answer")]
            await store.append(hold, batch(ms)._replace(side=side))
        while (await store.sweep_log(hold, 0, 100, side_before=row_id(20, 0))).more:
            pass
        left = await store.side(LOG, IDEMPOTENCY, b"k" * 16)
        assert [side.row for side in left] == [row_id(20, 0), row_id(30, 0)]

    run(story)


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_many_side_rows_are_looked_at_in_stretches(rows_max, monkeypatch):
    monkeypatch.setattr(sweeping, "SIDE_KEYS_MAX", 3)

    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms in range(10, 210, 10):
            side = [SideRow(IDEMPOTENCY, b"%016d" % (ms * 7 % 11), row_id(ms, 0), b"answer")]
            await store.append(hold, batch(ms)._replace(side=side))
        for _ in range(3):  # Round after round, as a sweeper does.
            slices = [await store.sweep_log(hold, 0, rows_max, side_before=row_id(100, 0))]
            while slices[-1].more:
                assert len(slices) < 100
                slices.append(await store.sweep_log(hold, 0, rows_max, side_before=row_id(100, 0)))
        sides = await store._reader.prefixed(Table.MESSAGES, side_prefix(LOG, IDEMPOTENCY))
        assert sorted(timestamp_of(row.key[-10:]) for row in sides) == list(range(100, 210, 10))

    run(story)


def test_a_stale_view_removes_nothing_that_a_reader_may_be_shown():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        for ms in (10, 20, 30):
            await store.append(hold, batch(ms))
        later = await other.claim(LOG, "b")
        await other.append(later, batch(40))
        # The fenced leader does not know yet that it is one. It may sweep by the floor it confirmed.
        while (await store.sweep_log(hold, 1 << 50, 10, side_before=row_id(1 << 40, 0))).more:
            pass
        assert await ids_ms(other) == [10, 20, 30, 40]

    run(story)


def test_only_rows_whose_own_life_is_over_go_above_the_floor():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms, lifetime_ms in ((10, 5), (20, None), (30, 500), (40, 5)):
            segment = Segment([row_id(ms, 0)], [b"x"], None, None, lifetime_ms)
            await store.append(hold, Batch([segment], row_id(ms, 0)))
        for _ in range(50):
            if not (await store.sweep_log(hold, 100, 1)).more:
                break
        assert await ids_ms(store) == [20, 30, 40]

    run(story)


def test_a_row_above_the_floor_is_looked_at_once_and_when_it_is_due():
    async def story(cells, store, other):
        scan, looked = cells.scan, []

        async def counting(*place, **bounds):
            found = await scan(*place, **bounds)
            looked.append(len(found.rows))
            return found

        async def sweep(hold, now_ms):
            looked.clear()
            while (await other.sweep_log(hold, now_ms, 4)).more:
                pass
            return sum(looked)

        async def fill(log_store, hold, first_ms):
            for ms in range(first_ms, first_ms + 200, 10):
                life_ms = 500 if ms == first_ms + 50 else None
                segment = Segment([row_id(ms, 0)], [b"x"], None, None, life_ms)
                await log_store.append(hold, Batch([segment], row_id(ms, 0)))

        await fill(store, await store.claim(LOG, "a"), 10)
        later = await other.claim(LOG, "b")
        cells.scan = counting
        await fill(other, later, 1010)
        # All that was there, once; from then on what is due: four rows beside the one, or it alone.
        assert [await sweep(later, now_ms) for now_ms in (500, 550)] == [20, 0]
        assert [await sweep(later, now_ms) for now_ms in (600, 1500, 1600, 2000)] == [4, 0, 1, 0]
        assert not {60, 1060} & set(await ids_ms(other))

    run(story)


def test_a_delete_that_fails_is_done_by_a_later_slice():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms in range(10, 60, 10):
            await store.append(hold, batch(ms))
        await store.raise_floor(hold, row_id(40, 0))
        delete, failures = cells.delete, [1, 1]

        async def failing(table, keys):
            if failures:
                failures.pop()
                await delete(table, keys[:1])
                raise CellsError("time-out")
            await delete(table, keys)

        cells.delete = failing
        while (await store.sweep_log(hold, 0, 2)).more:
            pass
        assert (await store.estimate(LOG)).rows == 2
        assert await ids_ms(store) == [40, 50]

    run(story)


def test_what_goes_as_a_whole_goes_from_its_end():
    """A reader with an old control row is not shown a half-swept generation as if it were whole."""

    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        for ms in range(10, 60, 10):
            await store.append(hold, batch(ms))
        old = await cells.get(Table.MESSAGES, control_key(LOG))
        await store.tombstone(LOG, "a")
        await store.claim(LOG._replace(generation=2), "a")
        assert (await store.sweep_generations(LOG.topic, 2, 2)).more
        get, answers = cells.get, [old]

        async def old_first(table, key):
            return answers.pop() if answers else await get(table, key)

        cells.get = old_first
        assert await ids_ms(other) == []
        assert other.stale_answers == 1

    run(story)


def test_a_topic_that_was_never_created_anew_has_no_older_generations_to_look_for():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        asked = []

        async def keys(*question, **bounds):
            asked.append((question, bounds))
            return await type(cells).keys(cells, *question, **bounds)

        cells.keys = keys
        assert await store.sweep_generations(LOG.topic, 1, 100) == (0, False)
        assert asked == []
        await store.sweep_generations(LOG.topic, 2, 100)
        assert asked

    run(story)

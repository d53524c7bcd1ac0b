"""Pages from tables that answer from the past."""

import pytest

from broker.errors import Unavailable
from broker.model import ROW_ID_MIN, row_id
from broker.storage.cells import Table
from broker.storage.keys import control_key
from tests.unit.storage.scripted_tables import LOG, batch, ids_ms, run


def test_a_scan_that_does_not_meet_the_row_at_the_pointer_is_repeated():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10, 20, 30))
        scan, answers = cells.scan, []

        async def old_scan(*arguments, **options):
            found = await scan(*arguments, **options)
            answers.append(len(found))
            return found[:1] if len(answers) < 3 else found

        cells.scan = old_scan
        assert await ids_ms(store) == [10, 20, 30]
        assert store.stale_answers == 2

        async def empty_scan(*_, **__):
            return []

        cells.scan = empty_scan
        with pytest.raises(Unavailable):
            await ids_ms(store)

    run(story)


def test_a_range_below_the_pointer_is_not_taken_for_whole_from_an_old_answer():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        for ms in (10, 20, 30, 40):
            await store.append(hold, batch(ms, pointer=7))
        scan, answers = cells.scan, []

        async def old_scan(table, start, stop, *, rows_max, reverse=False):
            answers.append(1)
            found = await scan(table, start, stop, rows_max=rows_max, reverse=reverse)
            old = [row for row in found if row.key[-10:] < row_id(20, 0)]
            return old if len(answers) % 3 == 1 else found

        cells.scan = old_scan
        for reverse in (False, True):
            page = await store.scan(
                LOG, ROW_ID_MIN, row_id(30, 0), rows_max=9, bytes_max=1 << 20, reverse=reverse
            )
            assert len(page.rows) == 3
        assert await store.negate(hold, row_id(15, 0), row_id(30, 0), 7) == 2

    run(story)


def test_an_older_control_row_than_seen_before_is_not_believed():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        get = cells.get
        old = await get(Table.MESSAGES, control_key(LOG))
        await store.append(hold, batch(20))
        answers = [old, None]

        async def old_get(table, key):
            return answers.pop() if answers else await get(table, key)

        cells.get = old_get
        assert (await store.head(LOG)) == hold.control
        assert not answers

    run(story)

"""Pages from tables that answer from the past."""

import pytest

from broker.clock import SystemClock
from broker.errors import Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, row_id, timestamp_of
from broker.storage import reading
from broker.storage.cells import Scanned, Table, bytes_of
from broker.storage.keys import control_key
from broker.storage.memory_cells import MemoryCells
from broker.storage.ports import Batch, Segment
from broker.storage.tables import TableLogStore
from broker.storage.visibility import rows_of
from tests.unit.storage.scripted_tables import LOG, batch, ids_ms, run


def test_a_scan_that_does_not_meet_the_row_at_the_pointer_is_repeated():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10, 20, 30))
        scan, answers = cells.scan, []

        async def old_scan(*arguments, **options):
            found = await scan(*arguments, **options)
            answers.append(len(found))
            return Scanned(found.rows[:1], more=False) if len(answers) < 3 else found

        cells.scan = old_scan
        assert await ids_ms(store) == [10, 20, 30]
        assert store.stale_answers == 2

        async def empty_scan(*_, **__):
            return Scanned([], more=False)

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

        async def old_scan(*arguments, **options):
            answers.append(1)
            found = await scan(*arguments, **options)
            old = [row for row in found.rows if row.key[-10:] < row_id(20, 0)]
            return Scanned(old, more=False) if len(answers) % 3 == 1 else found

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


class Weighed(MemoryCells):
    """Tables that count the bytes that they give away."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    async def scan(self, *arguments, **options):
        found = await super().scan(*arguments, **options)
        self.given += sum(map(bytes_of, found.rows))
        return found


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_page_of_large_rows_costs_hardly_more_than_itself(reverse):
    cells = Weighed()
    store = TableLogStore(cells, SystemClock())
    hold = await store.claim(LOG, "a")
    ids = [row_id(ms, 0) for ms in range(1, 101)]
    await store.append(hold, Batch([Segment(ids, [b"x" * 50_000] * 100)], ids[-1]))
    page = await store.scan(
        LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=1000, bytes_max=120_000, reverse=reverse
    )
    assert [row.id for row in page.rows] == (ids[::-1] if reverse else ids)[:2]
    assert page.more
    assert cells.given < 5 * 52_000


@pytest.mark.parametrize("reverse", [False, True])
def test_a_stretch_of_rows_that_do_not_count_is_passed_without_their_payloads(reverse, monkeypatch):
    async def story(cells, store, other):
        monkeypatch.setattr(reading, "SKIPPED_ROWS_MAX", (20, 2000))
        hold = await store.claim(LOG, "a")
        await store.append(hold, batch(10))
        dead = [row_id(11, number) for number in range(1500)]
        lost = Batch([Segment(dead, [b"x" * 1000] * len(dead))], dead[-1])
        await cells.put(Table.MESSAGES, list(rows_of(LOG, lost, hold.epoch)))
        later = await other.claim(LOG, "b")
        await other.append(later, batch(5000))
        await other.append(later, batch(6000))

        page = await store.scan(
            LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=9, bytes_max=1 << 20, reverse=reverse
        )
        got = [timestamp_of(row.id) for row in page.rows]
        assert got == ([6000, 5000, 10] if reverse else [10, 5000, 6000])
        monkeypatch.setattr(reading, "SKIPPED_ROWS_MAX", (20, 1000))
        with pytest.raises(Unavailable, match="do not count"):
            await store.scan(
                LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=9, bytes_max=1 << 20, reverse=reverse
            )

    run(story)

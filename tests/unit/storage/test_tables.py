"""What the log store does when its tables misbehave, one behaviour at a time."""

import asyncio
from collections.abc import Callable

import pytest

from broker.errors import BodyTooLarge, Fenced, OutcomeUnknown, StorageCorrupt, Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_id
from broker.storage import control
from broker.storage.cells import CONTROL_COLUMN, Cell, CellsError, RowCells, Table
from broker.storage.control import RANGES_MAX
from broker.storage.keys import IDEMPOTENCY, LogId, control_key
from broker.storage.memory import MemoryCells
from broker.storage.ports import Batch, Segment, SideRow
from broker.storage.tables import TableLogStore
from broker.testing.clock import VirtualClock, pass_time, simulate

LOG = LogId(TopicId("default", "notes"), 1)


class Scripted(MemoryCells):
    """Tables of which the next calls can be told what to do: (before, after) the real call."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[Callable[[], None]] = []
        self.after_puts: list[Callable[[], None]] = []
        self.cas: list[str] = []
        self.gate: asyncio.Event | None = None
        self.log: list[str] = []

    async def put(self, table, rows, *, synced=True):
        if self.gate is not None and len(self.log) == 0:
            self.log.append("waits")
            await self.gate.wait()
        if self.puts:
            self.puts.pop(0)()
        await super().put(table, rows, synced=synced)
        if self.after_puts:
            self.after_puts.pop(0)()

    async def check_and_put(self, table, key, expected, value):
        word = self.cas.pop(0) if self.cas else "do"
        if word == "fail":
            raise CellsError("not done")
        done = await super().check_and_put(table, key, expected, value)
        if word == "do and fail":
            raise CellsError("answer lost")
        return False if word == "do and lie" else done


def fail() -> None:
    raise CellsError("time-out")


def batch(*rows_ms: int, pointer: int | None = None) -> Batch:
    ids = [row_id(ms, 0) for ms in rows_ms]
    return Batch([Segment(ids, [b"x"] * len(ids), pointer)], ids[-1])


def run(story):
    """Tell a story in virtual time; it gets the tables and two stores over them."""

    async def main(loop):
        cells = Scripted()
        clock = VirtualClock(loop)
        stores = [TableLogStore(cells, clock, call_s=2.0) for _ in range(2)]
        await story(cells, *stores)

    simulate(main)


async def ids_ms(store: TableLogStore, log: LogId = LOG) -> list[int]:
    page = await store.scan(log, ROW_ID_MIN, ROW_ID_MAX, rows_max=1000, bytes_max=1 << 20)
    return [int.from_bytes(row.id[:8], "big") for row in page.rows]


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


def test_a_row_that_the_tables_cannot_hold_is_refused_before_anything_is_sent():
    async def story(_, __, ___):
        cells = MemoryCells(row_bytes_max=200)
        store = TableLogStore(cells, VirtualClock(asyncio.get_running_loop()))
        hold = await store.claim(LOG, "a")
        with pytest.raises(BodyTooLarge):
            await store.append(hold, Batch([Segment([row_id(5, 0)], [b"x" * 500])], row_id(5, 0)))
        assert not hold.done
        await store.append(hold, batch(10))

    run(story)


def test_a_release_fails_quietly_where_the_log_was_lost():
    async def story(cells, store, other):
        hold = await store.claim(LOG, "a")
        await other.claim(LOG, "b")
        assert not await store.release(hold)
        assert hold.done

    run(story)


def test_a_damaged_control_row_stops_everything():
    async def story(cells, store, _):
        hold = await store.claim(LOG, "a")
        value = control.encode(hold.control)[:-1] + b"?"
        table = cells.tables[Table.MESSAGES]
        table.put(RowCells(control_key(LOG), {CONTROL_COLUMN: Cell(1 << 40, value)}))
        with pytest.raises(StorageCorrupt):
            await store.head(LOG)
        with pytest.raises(StorageCorrupt):
            await store.claim(LOG, "a")

    run(story)


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

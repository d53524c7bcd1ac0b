"""The contract of the log store, as tests: appending, claiming, reading.

What belongs to payload logs, retention and generations is in log_lifecycle.py; a test class takes both
through ``LogStoreContract`` there.
"""

# ruff: noqa: D102  A test's name states the behaviour.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import pytest

from broker.errors import BrokerError, Fenced
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_before, row_id
from broker.storage.control import Control, State
from broker.storage.keys import IDEMPOTENCY, LogId
from broker.storage.ports import Batch, Hold, LogStore, Row, Rows, Segment, SideRow

TOPIC = TopicId("default", "notes")
LOG = LogId(TOPIC, 1)
MANY = 1 << 20
BYTES_MAX = 1 << 26


class StoreHarness(Protocol):
    """Opens the store under test; again, after it was closed, on the same data."""

    async def open(self) -> LogStore:
        """Open the store."""


class Ids:
    """Row ids that rise, one a millisecond."""

    def __init__(self, first_ms: int = 1000) -> None:
        """Begin at ``first_ms``."""
        self._ms = first_ms

    def take(self, count: int = 1) -> list[RowId]:
        """Return the next ids."""
        self._ms += count
        return [row_id(self._ms - count + i, 0) for i in range(count)]


def batch_of(
    ids: Sequence[RowId], *, pointer: int | None = None, side: Sequence[SideRow] = ()
) -> Batch:
    """Return a batch of inline rows whose payloads are told by their ids."""
    segment = Segment(ids, [payload_of(row) for row in ids], pointer=pointer)
    return Batch([segment], ids[-1], side)


def payload_of(row: RowId) -> bytes:
    """Return the payload that ``batch_of`` gives a row."""
    return b"payload of " + row.hex().encode()


async def read(
    store: LogStore,
    log: LogId = LOG,
    after: RowId = ROW_ID_MIN,
    through: RowId = ROW_ID_MAX,
    *,
    rows_max: int = MANY,
    reverse: bool = False,
) -> Rows:
    """Scan with bounds that most tests don't care about."""
    return await store.scan(
        log, after, through, rows_max=rows_max, bytes_max=BYTES_MAX, reverse=reverse
    )


async def ids_of(store: LogStore, log: LogId = LOG) -> list[RowId]:
    """Return the ids of all counting rows."""
    return [row.id for row in (await read(store, log)).rows]


async def head_of(store: LogStore, log: LogId = LOG) -> Control:
    """Return the control row, which must be there."""
    control = await store.head(log)
    assert control is not None
    return control


class StoreSuite:
    """The fixtures that all suites of the log store share."""

    @pytest.fixture
    async def store(self, harness: StoreHarness) -> AsyncIterator[LogStore]:
        """Give the opened store."""
        opened = await harness.open()
        yield opened
        await opened.close()

    @pytest.fixture
    async def hold(self, store: LogStore) -> Hold:
        """Give a hold on the message log."""
        return await store.claim(LOG, "a")

    @pytest.fixture
    def ids(self) -> Ids:
        """Give rising ids."""
        return Ids()


class ClaimContract(StoreSuite):
    """Claims, fencing, handoff."""

    async def test_a_log_without_claims_has_no_head_and_no_rows(self, store: LogStore) -> None:
        assert await store.head(LOG) is None
        page = await read(store)
        assert (page.rows, page.control, page.more) == ([], None, False)

    async def test_the_first_claim_is_epoch_1(self, store: LogStore) -> None:
        hold = await store.claim(LOG, "a")
        assert (hold.epoch, hold.done, hold.log) == (1, False, LOG)
        assert await head_of(store) == hold.control
        assert hold.control.owner == "a"
        assert hold.control.generation == 1
        assert hold.control.pointer == ROW_ID_MIN

    async def test_each_claim_raises_the_epoch(self, store: LogStore) -> None:
        assert [(await store.claim(LOG, owner)).epoch for owner in "abab"] == [1, 2, 3, 4]
        assert (await head_of(store)).owner == "b"

    async def test_a_claim_fences_the_former_holder(self, store: LogStore, ids: Ids) -> None:
        first = await store.claim(LOG, "a")
        kept = ids.take(3)
        await store.append(first, batch_of(kept))
        second = await store.claim(LOG, "b")
        with pytest.raises(Fenced):
            await store.append(first, batch_of(ids.take()))
        assert first.done
        assert not second.done
        assert await ids_of(store) == kept

    async def test_every_change_of_a_fenced_holder_is_refused(
        self, store: LogStore, ids: Ids
    ) -> None:
        first = await store.claim(LOG, "a")
        [row] = ids.take()
        await store.append(first, batch_of([row], pointer=7))
        await store.claim(LOG, "b")
        before = await head_of(store)
        for change in (
            lambda: store.negate(first, row, row, 7),
            lambda: store.raise_floor(first, row),
            lambda: store.append(first, batch_of(ids.take())),
        ):
            with pytest.raises(BrokerError):
                await change()
        assert not await store.release(first)
        assert await head_of(store) == before
        [seen] = (await read(store)).rows
        assert seen.pointer in (7, -7)  # A fenced rollback's marks may have landed; no answer did.

    async def test_the_new_holder_reads_and_goes_on_above(self, store: LogStore, ids: Ids) -> None:
        first = await store.claim(LOG, "a")
        old, new = ids.take(2), ids.take(2)
        await store.append(first, batch_of(old))
        second = await store.claim(LOG, "b")
        assert second.control.pointer == old[-1]
        await store.append(second, batch_of(new))
        assert await ids_of(store) == old + new

    async def test_one_of_two_claims_at_once_holds_the_log(self, store: LogStore, ids: Ids) -> None:
        claims = await asyncio.gather(
            store.claim(LOG, "a"), store.claim(LOG, "b"), return_exceptions=True
        )
        holds = [claim for claim in claims if not isinstance(claim, BaseException)]
        assert holds
        assert all(isinstance(claim, BrokerError) for claim in claims if claim not in holds)
        newest = max(holds, key=lambda hold: hold.epoch)
        kept = ids.take()
        await store.append(newest, batch_of(kept))
        for hold in holds:
            if hold is not newest:
                with pytest.raises(Fenced):
                    await store.append(hold, batch_of(ids.take()))
        assert await ids_of(store) == kept

    async def test_a_release_leaves_the_log_without_owner(self, store: LogStore, ids: Ids) -> None:
        hold = await store.claim(LOG, "a")
        rows = ids.take(2)
        await store.append(hold, batch_of(rows))
        assert await store.release(hold)
        assert hold.done
        released = await head_of(store)
        assert (released.owner, released.epoch, released.pointer) == ("", 2, rows[-1])
        with pytest.raises(BrokerError):
            await store.append(hold, batch_of(ids.take()))
        again = await store.claim(LOG, "b")
        assert again.epoch == 3
        assert len(again.control.ranges) == 1
        assert await ids_of(store) == rows

    async def test_many_takeovers_keep_all_rows(self, store: LogStore, ids: Ids) -> None:
        kept: list[RowId] = []
        for number in range(150):
            hold = await store.claim(LOG, f"node {number % 3}")
            rows = ids.take(2)
            await store.append(hold, batch_of(rows))
            kept += rows
        assert await ids_of(store) == kept
        assert (await head_of(store)).epoch == 150
        backwards = await read(store, reverse=True)
        assert [row.id for row in backwards.rows] == kept[::-1]


class AppendContract(StoreSuite):
    """What an append writes."""

    async def test_a_row_comes_back_with_all_its_columns(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        a, b, c, d, e = ids.take(5)
        segments = [
            Segment([a], [b"plain"]),
            Segment([b], [b""], pointer=5, lifetime_ms=60_000),
            Segment([c], None, pointer=6),
            Segment([d], None, number=-3),
            Segment([e], [bytes(range(256))], pointer=0),
        ]
        await store.append(hold, Batch(segments, e))
        assert (await read(store)).rows == [
            Row(a, b"plain"),
            Row(b, b"", 5, None, 60_000),
            Row(c, None, 6),
            Row(d, None, None, -3),
            Row(e, bytes(range(256)), 0),
        ]

    async def test_the_hold_follows_what_was_committed(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(3)
        await store.append(hold, batch_of(rows))
        assert hold.control.pointer == rows[-1]
        assert await head_of(store) == hold.control

    async def test_each_append_has_a_token_of_its_own(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        tokens = {hold.control.token}
        for _ in range(3):
            await store.append(hold, batch_of(ids.take()))
            tokens.add(hold.control.token)
        assert len(tokens) == 4

    async def test_appends_made_at_once_take_effect_in_order(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        batches = [ids.take(1 + number % 4) for number in range(12)]
        seen: list[int] = []

        async def append(number: int) -> None:
            await store.append(hold, batch_of(batches[number]))
            seen.append(number)
            counting = await ids_of(store)
            assert counting[-1] >= batches[number][-1]

        await asyncio.gather(*(append(number) for number in range(12)))
        assert seen == sorted(seen)
        assert await ids_of(store) == [row for batch in batches for row in batch]

    async def test_a_reader_sees_whole_batches_only(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        batches = [ids.take(5) for _ in range(20)]
        ends = {batch[-1] for batch in batches} | {None}
        appending = asyncio.gather(*(store.append(hold, batch_of(batch)) for batch in batches))
        while not appending.done():
            counting = await ids_of(store)
            assert (counting[-1] if counting else None) in ends
            assert len(counting) % 5 == 0
            await asyncio.sleep(0)
        await appending
        assert len(await ids_of(store)) == 100

    async def test_logs_of_other_topics_and_generations_are_apart(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        others = [
            LogId(TopicId("default", "note"), 1),
            LogId(TopicId("default", "notes2"), 1),
            LogId(TopicId("defaul", "t"), 1),
        ]
        written = {LOG: ids.take(2)}
        await store.append(hold, batch_of(written[LOG]))
        for log in others:
            other = await store.claim(log, "a")
            written[log] = ids.take(2)
            await store.append(other, batch_of(written[log]))
        for log, rows in written.items():
            assert await ids_of(store, log) == rows

    async def test_ids_of_the_edges_of_what_an_id_can_hold(
        self, store: LogStore, hold: Hold
    ) -> None:
        rows = [row_id(0, 1), row_id(0, 0xFFFF), row_id(1, 0), row_before(ROW_ID_MAX), ROW_ID_MAX]
        await store.append(hold, batch_of(rows))
        assert await ids_of(store) == rows

    async def test_a_large_batch_is_one(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        rows = ids.take(5000)
        await store.append(hold, batch_of(rows))
        assert await ids_of(store) == rows

    async def test_everything_is_there_after_reopening(self, harness: StoreHarness) -> None:
        ids = Ids()
        store = await harness.open()
        hold = await store.claim(LOG, "a")
        rows = ids.take(10)
        side = [SideRow(IDEMPOTENCY, b"k" * 16, rows[0], b"answer")]
        await store.append(hold, batch_of(rows, pointer=4, side=side))
        await store.negate(hold, rows[0], rows[1], 4)
        before = await head_of(store)
        await store.close()
        store = await harness.open()
        assert await head_of(store) == before
        assert [row.pointer for row in (await read(store)).rows] == [-4, -4] + [4] * 8
        assert await store.side(LOG, IDEMPOTENCY, b"k" * 16) == side
        again = await store.claim(LOG, "b")
        assert again.epoch == 2
        await store.append(again, batch_of(ids.take()))
        assert len(await ids_of(store)) == 11
        await store.close()


class SideContract(StoreSuite):
    """Rows that go with a batch."""

    async def test_side_rows_come_back_by_kind_and_key(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        one, two = ids.take(), ids.take()
        first = SideRow(IDEMPOTENCY, b"a" * 16, one[0], b"1")
        second = SideRow(IDEMPOTENCY, b"a" * 16, two[0], b"2")
        other = SideRow(IDEMPOTENCY, b"b" * 16, two[0], b"3")
        await store.append(hold, batch_of(one, side=[first]))
        await store.append(hold, batch_of(two, side=[second, other]))
        assert await store.side(LOG, IDEMPOTENCY, b"a" * 16) == [first, second]
        assert await store.side(LOG, IDEMPOTENCY, b"b" * 16) == [other]
        assert await store.side(LOG, IDEMPOTENCY, b"c" * 16) == []

    async def test_side_rows_survive_a_takeover(self, store: LogStore, ids: Ids) -> None:
        first = await store.claim(LOG, "a")
        rows = ids.take(2)
        side = [SideRow(IDEMPOTENCY, b"a" * 16, rows[0], b"1")]
        await store.append(first, batch_of(rows, side=side))
        second = await store.claim(LOG, "b")
        await store.append(second, batch_of(ids.take()))
        assert await store.side(LOG, IDEMPOTENCY, b"a" * 16) == side

    async def test_side_rows_of_a_refused_batch_do_not_count(
        self, store: LogStore, ids: Ids
    ) -> None:
        first = await store.claim(LOG, "a")
        await store.append(first, batch_of(ids.take()))
        second = await store.claim(LOG, "b")
        rows = ids.take(2)
        side = [SideRow(IDEMPOTENCY, b"a" * 16, rows[0], b"1")]
        with pytest.raises(BrokerError):
            await store.append(first, batch_of(rows, side=side))
        await store.append(second, batch_of(ids.take()))
        assert await store.side(LOG, IDEMPOTENCY, b"a" * 16) == []

    async def test_side_rows_of_a_payload_log_are_its_own(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 12)
        rows = ids.take(2)
        side = [SideRow(IDEMPOTENCY, b"a" * 16, rows[0], b"1")]
        await store.append(payloads, batch_of(rows, side=side))
        assert await store.side(payloads.log, IDEMPOTENCY, b"a" * 16) == side
        assert await store.side(LOG, IDEMPOTENCY, b"a" * 16) == []


class ScanContract(StoreSuite):
    """Pages, bounds, directions."""

    async def test_bounds_are_exclusive_and_inclusive(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(5)
        await store.append(hold, batch_of(rows))
        for low in range(5):
            for high in range(5):
                for reverse in (False, True):
                    page = await read(store, LOG, rows[low], rows[high], reverse=reverse)
                    expected = rows[low + 1 : high + 1]
                    got = [row.id for row in page.rows]
                    assert got == (expected[::-1] if reverse else expected)
                    assert not page.more

    @pytest.mark.parametrize("width", [1, 2, 3, 7, 40, 41])
    async def test_pages_give_each_row_once(
        self, store: LogStore, hold: Hold, ids: Ids, width: int
    ) -> None:
        rows = ids.take(20) + Ids(5000).take(20)
        await store.append(hold, batch_of(rows[:15]))
        await store.append(hold, batch_of(rows[15:]))
        forward, after, more = [], ROW_ID_MIN, True
        while more:
            page = await read(store, LOG, after, rows_max=width)
            assert len(page.rows) <= width
            forward += [row.id for row in page.rows]
            assert page.seen > after
            after, more = page.seen, page.more
        assert forward == rows
        back, through, more = [], ROW_ID_MAX, True
        while more:
            page = await read(store, LOG, ROW_ID_MIN, through, rows_max=width, reverse=True)
            back += [row.id for row in page.rows]
            assert page.seen <= through
            through, more = row_before(page.seen), page.more
        assert back == rows[::-1]

    async def test_pages_end_by_bytes_after_one_row_at_least(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(6)
        await store.append(hold, Batch([Segment(rows, [b"x" * 1000] * 6)], rows[-1]))

        async def page_of(bytes_max: int) -> Rows:
            return await store.scan(LOG, ROW_ID_MIN, ROW_ID_MAX, rows_max=MANY, bytes_max=bytes_max)

        page = await page_of(1)
        assert [row.id for row in page.rows] == rows[:1]
        assert page.more
        page = await page_of(2500)
        assert 1 <= len(page.rows) <= 3
        assert page.more
        assert not (await page_of(6000)).more

    async def test_an_empty_range_has_no_more(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        rows = ids.take(2)
        await store.append(hold, batch_of(rows))
        for after, through in ((rows[1], ROW_ID_MAX), (rows[1], rows[0]), (rows[0], rows[0])):
            page = await read(store, LOG, after, through)
            assert (page.rows, page.more) == ([], False)
            assert page.control == hold.control

    async def test_a_scan_goes_on_after_what_it_saw(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        await store.append(hold, batch_of(ids.take(3)))
        page = await read(store)
        later = ids.take(2)
        await store.append(hold, batch_of(later))
        page = await read(store, LOG, page.seen)
        assert [row.id for row in page.rows] == later

    async def test_a_scan_of_another_generation_is_empty_and_tells(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        await store.append(hold, batch_of(ids.take(3)))
        older = await read(store, LogId(TOPIC, 2))
        assert older.rows == []
        assert older.control == hold.control
        newer = await store.claim(LogId(TOPIC, 2), "a")
        page = await read(store, LOG)
        assert page.rows == []
        assert page.control == newer.control


class NegateContract(StoreSuite):
    """Rollbacks."""

    async def test_the_rows_of_a_pointer_in_a_range_are_negated(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(6)
        for row, pointer in zip(rows, (7, 7, 8, None, 7, 7), strict=True):
            await store.append(hold, batch_of([row], pointer=pointer))
        before = hold.control.edits
        assert await store.negate(hold, rows[1], rows[4], 7) == 2
        got = [row.pointer for row in (await read(store)).rows]
        assert got == [7, -7, 8, None, -7, 7]
        assert hold.control.edits == before + 1
        assert await head_of(store) == hold.control

    async def test_negating_again_changes_nothing(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(3)
        await store.append(hold, batch_of(rows, pointer=7))
        for _ in range(3):
            await store.negate(hold, rows[0], rows[-1], 7)
        page = await read(store)
        assert [row.pointer for row in page.rows] == [-7] * 3
        assert [row.payload for row in page.rows] == [payload_of(row) for row in rows]

    async def test_nothing_to_negate_is_no_error(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        assert await store.negate(hold, ROW_ID_MIN, ROW_ID_MAX, 7) == 0
        rows = ids.take(3)
        await store.append(hold, batch_of(rows, pointer=8))
        assert await store.negate(hold, rows[0], rows[-1], 7) == 0
        assert await store.negate(hold, rows[-1], rows[0], 8) == 0
        assert [row.pointer for row in (await read(store)).rows] == [8] * 3

    async def test_a_later_holder_negates_an_earlier_ones_rows(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(3)
        await store.append(hold, batch_of(rows, pointer=7))
        later = await store.claim(LOG, "b")
        assert await store.negate(later, rows[0], rows[-1], 7) == 3
        again = await store.claim(LOG, "a")
        await store.append(again, batch_of(ids.take()))
        assert [row.pointer for row in (await read(store)).rows] == [-7] * 3 + [None]

    async def test_references_and_lifetimes_stay_what_they_are(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        a, b = ids.take(2)
        segments = [Segment([a], None, pointer=7), Segment([b], [b"x"], 7, None, 500)]
        await store.append(hold, Batch(segments, b))
        assert await store.negate(hold, a, b, 7) == 2
        assert (await read(store)).rows == [Row(a, None, -7), Row(b, b"x", -7, None, 500)]

    async def test_a_negation_among_appends(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        first = ids.take(3)
        await store.append(hold, batch_of(first, pointer=7))
        batches = [ids.take(2) for _ in range(6)]
        await asyncio.gather(
            *(store.append(hold, batch_of(batch)) for batch in batches[:3]),
            store.negate(hold, first[0], first[-1], 7),
            *(store.append(hold, batch_of(batch)) for batch in batches[3:]),
        )
        rows = (await read(store)).rows
        assert [row.id for row in rows] == first + [row for batch in batches for row in batch]
        assert [row.pointer for row in rows[:3]] == [-7] * 3
        assert (await head_of(store)).state is State.OPEN

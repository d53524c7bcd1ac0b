"""The contract of the log store, as tests: payload logs, floors, deletes, sweeping."""

from __future__ import annotations

import pytest

from broker.errors import BrokerError, Fenced, PayloadsSealed
from broker.model import ROW_ID_MIN, row_id
from broker.storage.control import Deleted, StaleGeneration, State
from broker.storage.keys import IDEMPOTENCY, LogId
from broker.storage.ports import Batch, Hold, LogStore, Segment, SideRow
from broker.testing.contract.log_store import (
    LOG,
    TOPIC,
    AppendContract,
    ClaimContract,
    Ids,
    NegateContract,
    ScanContract,
    SideContract,
    StoreHarness,
    StoreSuite,
    batch_of,
    head_of,
    ids_of,
    payload_of,
    read,
)

NEXT = LogId(TOPIC, 2)
SLICES_MAX = 1000


async def sweep(store: LogStore, hold: Hold, expired_before_ms: int, rows_max: int) -> int:
    """Sweep a message log to the end, slice by slice; return how many rows went."""
    gone = 0
    for _ in range(SLICES_MAX):
        swept = await store.sweep_log(hold, expired_before_ms, rows_max)
        assert swept.rows <= rows_max
        gone += swept.rows
        if not swept.more:
            return gone
    raise AssertionError("sweeping a log does not end")


class PayloadContract(StoreSuite):
    """Payload logs: opened under the topic's hold, sealed, published, dropped."""

    async def test_opening_writes_nothing(self, store: LogStore, hold: Hold) -> None:
        payloads = await store.open_payloads(hold, 7)
        assert payloads.log == LogId(TOPIC, 1, 7)
        assert (payloads.epoch, payloads.done) == (hold.epoch, False)
        assert payloads.control.state is State.OPEN
        assert payloads.control.pointer == ROW_ID_MIN
        assert await store.head(payloads.log) is None
        assert await store.payload_logs(TOPIC) == []

    async def test_the_first_append_claims_and_commits(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        rows = ids.take(3)
        await store.append(payloads, batch_of(rows))
        control = await head_of(store, payloads.log)
        assert (control.epoch, control.pointer) == (hold.epoch, rows[-1])
        assert await ids_of(store, payloads.log) == rows
        assert await ids_of(store) == []

    async def test_stages_have_negative_numbers(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        written = {}
        for number in (-1, 0, 1, -(1 << 63), (1 << 63) - 1):
            payloads = await store.open_payloads(hold, number)
            written[payloads.log] = ids.take(2)
            await store.append(payloads, batch_of(written[payloads.log]))
        for log, rows in written.items():
            assert await ids_of(store, log) == rows
        listed = dict(await store.payload_logs(TOPIC))
        assert set(listed) == set(written)
        assert {control.pointer for control in listed.values()} == {
            rows[-1] for rows in written.values()
        }

    async def test_a_later_leader_goes_on_with_the_log(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        rows = ids.take(2)
        await store.append(payloads, batch_of(rows))
        later = await store.claim(LOG, "b")
        opened = await store.open_payloads(later, 7)
        assert (opened.epoch, opened.control.pointer) == (later.epoch, rows[-1])
        more = ids.take(2)
        await store.append(opened, batch_of(more))
        assert await ids_of(store, opened.log) == rows + more
        assert (await head_of(store, opened.log)).epoch == later.epoch
        with pytest.raises(BrokerError):
            await store.append(payloads, batch_of(ids.take()))
        assert await ids_of(store, opened.log) == rows + more

    async def test_a_fenced_leader_cannot_open_what_a_later_one_wrote(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        later = await store.claim(LOG, "b")
        opened = await store.open_payloads(later, 7)
        await store.append(opened, batch_of(ids.take()))
        with pytest.raises(Fenced):
            await store.open_payloads(hold, 7)
        assert hold.done

    async def test_a_log_opened_again_under_one_hold_goes_on(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(2)
        payloads = await store.open_payloads(hold, 7)
        await store.append(payloads, batch_of(rows[:1]))
        again = await store.open_payloads(hold, 7)
        assert again.control == payloads.control
        await store.append(again, batch_of(rows[1:]))
        assert await ids_of(store, again.log) == rows

    async def test_a_sealed_log_takes_no_more(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        payloads = await store.open_payloads(hold, 7)
        rows = ids.take(2)
        await store.append(payloads, batch_of(rows))
        at = row_id(5, 5)
        await store.seal(payloads, at)
        control = await head_of(store, payloads.log)
        assert (control.state, control.sealed_at, control.pointer) == (State.SEALED, at, rows[-1])
        assert payloads.control == control
        with pytest.raises(PayloadsSealed):
            await store.append(payloads, batch_of(ids.take()))
        assert await ids_of(store, payloads.log) == rows

    async def test_an_absent_log_can_be_sealed(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.seal(payloads, row_id(5, 5))
        control = await head_of(store, payloads.log)
        assert (control.state, control.epoch) == (State.SEALED, hold.epoch)
        assert await ids_of(store, payloads.log) == []
        with pytest.raises(PayloadsSealed):
            await store.append(payloads, batch_of(ids.take()))

    async def test_a_seal_holds_for_later_leaders(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.append(payloads, batch_of(ids.take()))
        await store.seal(payloads, row_id(5, 5))
        later = await store.claim(LOG, "b")
        opened = await store.open_payloads(later, 7)
        assert opened.control.state is State.SEALED
        assert opened.control.sealed_at == row_id(5, 5)
        with pytest.raises(PayloadsSealed):
            await store.append(opened, batch_of(ids.take()))

    async def test_sealing_again_keeps_the_first_seal(self, store: LogStore, hold: Hold) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.seal(payloads, row_id(5, 5))
        await store.seal(payloads, row_id(9, 9))
        assert (await head_of(store, payloads.log)).sealed_at == row_id(5, 5)

    async def test_the_reference_is_recorded(self, store: LogStore, hold: Hold) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.seal(payloads, row_id(5, 5))
        await store.mark_published(payloads, row_id(8, 1))
        control = await head_of(store, payloads.log)
        assert (control.state, control.published) == (State.PUBLISHED, row_id(8, 1))

    async def test_a_dropped_log_is_swept_and_forgotten(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        kept = await store.open_payloads(hold, 8)
        rows = ids.take(25)
        side = [SideRow(IDEMPOTENCY, b"a" * 16, rows[0], b"1")]
        await store.append(payloads, batch_of(rows, side=side))
        await store.append(kept, batch_of(rows))
        untouched = await store.sweep_payloads(hold, 7, 10)
        assert (untouched.rows, untouched.more) == (0, False)
        await store.drop(payloads)
        assert (await head_of(store, payloads.log)).state is State.DROPPED
        gone = 0
        for _ in range(SLICES_MAX):
            swept = await store.sweep_payloads(hold, 7, 10)
            assert swept.rows <= 10
            gone += swept.rows
            if not swept.more:
                break
        assert 25 <= gone <= 26  # The side row may count.
        await store.forget_payloads(hold, 7)
        assert await store.head(payloads.log) is None
        assert await store.side(payloads.log, IDEMPOTENCY, b"a" * 16) == []
        assert [log for log, _ in await store.payload_logs(TOPIC)] == [kept.log]
        assert await ids_of(store, kept.log) == rows

    async def test_nothing_of_a_dropped_log_is_shown(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.append(payloads, batch_of(ids.take(5)))
        await store.drop(payloads)
        page = await read(store, payloads.log)
        assert (page.rows, page.more) == ([], False)
        assert page.control == payloads.control

    async def test_nothing_is_added_to_a_dropped_log(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.append(payloads, batch_of(ids.take()))
        await store.drop(payloads)
        with pytest.raises(BrokerError):
            await store.append(payloads, batch_of(ids.take()))

    async def test_a_log_that_is_not_dropped_is_not_forgotten(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        payloads = await store.open_payloads(hold, 7)
        await store.append(payloads, batch_of(ids.take()))
        await store.forget_payloads(hold, 7)
        assert await store.head(payloads.log) is not None

    async def test_payload_logs_are_listed_by_generation(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        first = await store.open_payloads(hold, 7)
        await store.append(first, batch_of(ids.take()))
        next_hold = await store.claim(NEXT, "a")
        second = await store.open_payloads(next_hold, 7)
        await store.append(second, batch_of(ids.take()))
        assert [log for log, _ in await store.payload_logs(TOPIC)] == [first.log, second.log]
        assert [log for log, _ in await store.payload_logs(TOPIC, 2)] == [second.log]


class FloorContract(StoreSuite):
    """The floor, and what sweeping removes."""

    async def test_nothing_below_the_floor_is_read(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(10)
        await store.append(hold, batch_of(rows))
        await store.raise_floor(hold, rows[4])
        assert await ids_of(store) == rows[4:]
        assert hold.control.floor == rows[4]
        assert await head_of(store) == hold.control
        backwards = await read(store, reverse=True)
        assert [row.id for row in backwards.rows] == rows[4:][::-1]

    async def test_the_floor_never_goes_down(self, store: LogStore, hold: Hold, ids: Ids) -> None:
        rows = ids.take(10)
        await store.append(hold, batch_of(rows))
        await store.raise_floor(hold, rows[6])
        await store.raise_floor(hold, rows[2])
        assert await ids_of(store) == rows[6:]
        later = await store.claim(LOG, "b")
        await store.raise_floor(later, rows[1])
        assert await ids_of(store) == rows[6:]

    async def test_the_row_at_the_pointer_is_never_below_the_floor(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(3)
        await store.append(hold, batch_of(rows))
        await store.raise_floor(hold, row_id(1 << 40, 0))
        await sweep(store, hold, 1 << 50, 10)
        assert await ids_of(store) == rows[-1:]
        later = ids.take(2)
        await store.append(hold, batch_of(later))
        assert await ids_of(store) == rows[-1:] + later

    async def test_sweeping_removes_what_is_below_the_floor_in_slices(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(100)
        await store.append(hold, batch_of(rows))
        assert await sweep(store, hold, 0, 10) == 0
        await store.raise_floor(hold, rows[60])
        assert await ids_of(store) == rows[60:]
        assert await sweep(store, hold, 0, 7) == 60
        assert await ids_of(store) == rows[60:]
        assert await sweep(store, hold, 0, 7) == 0

    async def test_sweeping_removes_rows_whose_own_life_ended(
        self, store: LogStore, hold: Hold
    ) -> None:
        rows = [row_id(1000 + number, 0) for number in range(10)]
        for number, row in enumerate(rows):
            lifetime_ms = 50 if number % 2 else None
            await store.append(hold, Batch([Segment([row], [b"x"], None, None, lifetime_ms)], row))
        assert await sweep(store, hold, 1000, 3) == 0
        assert len(await ids_of(store)) == 10
        # Lives end at 1051, 1053, … ; the row at the pointer stays.
        await sweep(store, hold, 1056, 3)
        left = await ids_of(store)
        assert left == [rows[0], rows[2], rows[4]] + [
            row for number, row in enumerate(rows) if number > 5 or number == 6
        ]
        await sweep(store, hold, 1 << 50, 3)
        assert await ids_of(store) == [rows[0], rows[2], rows[4], rows[6], rows[8], rows[9]]

    async def test_side_rows_go_with_their_window(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(4)
        side = [SideRow(IDEMPOTENCY, b"k" * 16, row, b"answer of " + row) for row in rows]
        for row, its_side in zip(rows, side, strict=True):
            await store.append(hold, batch_of([row], side=[its_side]))
        await sweep(store, hold, 0, 10)
        assert await store.side(LOG, IDEMPOTENCY, b"k" * 16) == side
        for _ in range(SLICES_MAX):
            if not (await store.sweep_log(hold, 0, 10, side_before=rows[2])).more:
                break
        assert await store.side(LOG, IDEMPOTENCY, b"k" * 16) == side[2:]
        assert await ids_of(store) == rows

    async def test_a_fenced_holder_sweeps_nothing_more_than_the_floor_allows(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(10)
        await store.append(hold, batch_of(rows))
        later = await store.claim(LOG, "b")
        await store.raise_floor(later, rows[3])
        with pytest.raises(BrokerError):
            await store.raise_floor(hold, rows[8])
        assert await ids_of(store) == rows[3:]

    async def test_an_estimate_grows_with_the_log(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        assert (await store.estimate(LOG)).rows == 0
        rows = ids.take(200)
        await store.append(hold, Batch([Segment(rows, [b"x" * 100] * 200)], rows[-1]))
        estimate = await store.estimate(LOG)
        assert 100 <= estimate.rows <= 400
        assert 10_000 <= estimate.bytes <= 60_000
        await store.compact(LOG)
        assert await ids_of(store) == rows


class GenerationContract(StoreSuite):
    """Deleting and creating again."""

    async def test_a_tombstone_fences_the_holder(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(2)
        await store.append(hold, batch_of(rows))
        await store.tombstone(LOG, "a")
        control = await head_of(store)
        assert (control.state, control.epoch) == (State.DELETED, hold.epoch + 1)
        assert control.pointer == rows[-1]
        with pytest.raises(BrokerError):
            await store.append(hold, batch_of(ids.take()))

    async def test_a_tombstone_can_be_put_without_claims_and_again(self, store: LogStore) -> None:
        await store.tombstone(LOG, "a")
        first = await head_of(store)
        assert (first.state, first.generation) == (State.DELETED, 1)
        await store.tombstone(LOG, "b")
        assert (await head_of(store)).state is State.DELETED

    async def test_a_deleted_generation_is_not_claimed(self, store: LogStore, hold: Hold) -> None:
        await store.tombstone(LOG, "a")
        with pytest.raises(Deleted):
            await store.claim(LOG, "a")

    async def test_the_next_generation_begins_above_and_empty(
        self, store: LogStore, hold: Hold, ids: Ids
    ) -> None:
        rows = ids.take(3)
        await store.append(hold, batch_of(rows))
        await store.negate(hold, rows[0], rows[0], 1)
        await store.tombstone(LOG, "a")
        again = await store.claim(NEXT, "b")
        assert again.epoch == hold.epoch + 2
        assert (again.control.generation, again.control.state) == (2, State.OPEN)
        assert again.control.pointer == again.control.floor == rows[-1]
        assert await ids_of(store, NEXT) == []
        later = ids.take(2)
        await store.append(again, batch_of(later))
        assert await ids_of(store, NEXT) == later
        assert await ids_of(store, LOG) == []

    async def test_a_claim_never_lowers_the_generation(self, store: LogStore) -> None:
        await store.claim(NEXT, "a")
        before = await head_of(store)
        with pytest.raises(StaleGeneration):
            await store.claim(LOG, "b")
        with pytest.raises(StaleGeneration):
            await store.tombstone(LOG, "b")
        assert await head_of(store) == before

    async def test_sweeping_older_generations_leaves_the_present_one(
        self, store: LogStore, ids: Ids
    ) -> None:
        written = {}
        for generation in (1, 2, 3):
            log = LogId(TOPIC, generation)
            hold = await store.claim(log, "a")
            rows = ids.take(20)
            side = [SideRow(IDEMPOTENCY, b"a" * 16, rows[0], b"1")]
            await store.append(hold, batch_of(rows, side=side))
            payloads = await store.open_payloads(hold, 7)
            stored = ids.take(5)
            await store.append(payloads, batch_of(stored))
            written[generation] = (log, rows, payloads.log, stored, side)
            if generation < 3:
                await store.tombstone(log, "a")
        for _ in range(SLICES_MAX):
            swept = await store.sweep_generations(TOPIC, 3, 7)
            if not swept.more:
                break
        log, rows, payload_log, stored, side = written[3]
        assert await ids_of(store, log) == rows
        assert await ids_of(store, payload_log) == stored
        assert await store.side(log, IDEMPOTENCY, b"a" * 16) == side
        assert [found for found, _ in await store.payload_logs(TOPIC)] == [payload_log]
        for generation in (1, 2):
            old, _, old_payloads, _, _ = written[generation]
            assert (await store.estimate(old)).rows == 0
            assert (await store.estimate(old_payloads)).rows == 0
            assert await store.head(old_payloads) is None
        assert (await head_of(store)).generation == 3

    async def test_deleting_and_creating_in_a_loop_never_shows_old_rows(
        self, store: LogStore, ids: Ids
    ) -> None:
        last = ROW_ID_MIN
        for generation in range(1, 12):
            log = LogId(TOPIC, generation)
            hold = await store.claim(log, "ab"[generation % 2])
            assert await ids_of(store, log) == []
            rows = ids.take(3)
            await store.append(hold, batch_of(rows))
            assert rows[0] > last
            assert (await read(store, log)).rows[0].payload == payload_of(rows[0])
            assert await ids_of(store, log) == rows
            last = rows[-1]
            if generation % 3:
                await store.tombstone(log, "a")
            if generation % 2:
                await store.sweep_generations(TOPIC, generation, 100)


class LogStoreContract(
    ClaimContract,
    AppendContract,
    SideContract,
    ScanContract,
    NegateContract,
    PayloadContract,
    FloorContract,
    GenerationContract,
):
    """All of it: subclass this with a ``harness`` fixture."""


__all__ = ["LogStoreContract", "StoreHarness"]

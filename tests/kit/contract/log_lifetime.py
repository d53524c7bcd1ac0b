"""The contract of the log protocol: generations, payload logs, records. See log.py."""

from __future__ import annotations

import asyncio

import pytest

from broker.clock import SystemClock
from broker.errors import Fenced
from broker.model import LOG_KEY_MIN, LogKey, log_key_after
from broker.storage import sweep
from broker.storage.entry import Shared
from broker.storage.head import PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Deleted, Logs, StaleGeneration
from broker.storage.payloads import LogClosed, PayloadLogs
from broker.storage.records import Records
from broker.storage.root import RootState
from tests.kit.bench import Gate, HookedTable
from tests.kit.contract.log_bench import (
    KEY,
    SMALL,
    Bench,
    LogSuite,
    hold_that_dies_at_its_roll,
    payload_of,
)


class GenerationContract(LogSuite):
    """Deleting a topic and creating it again."""

    async def test_deleting_closes_the_log(self, bench: Bench, hold: LogHold) -> None:
        await bench.publish(hold, 2)
        await bench.other.delete(bench.log, "other")
        ends = await bench.one.ends(bench.log)
        assert ends is not None
        assert (ends.root.state, ends.root.epoch, ends.tail) == (RootState.DELETED, 2, None)
        with pytest.raises(Fenced):
            await bench.publish(hold)
        assert await bench.read() == []
        with pytest.raises(Deleted):
            await bench.claim()
        await bench.one.delete(bench.log, "one")

    async def test_a_log_without_claims_can_be_deleted(self, bench: Bench) -> None:
        await bench.one.delete(bench.log, "one")
        with pytest.raises(Deleted):
            await bench.claim()

    async def test_a_claim_finishes_a_deletion_that_was_begun(
        self, bench: Bench, hold: LogHold
    ) -> None:
        await bench.publish(hold)
        root = await bench.other.root(bench.log)
        closed = await bench.other.close_tail(bench.log, root, "other")
        assert closed is not None
        assert await bench.read() != []
        with pytest.raises(Deleted):
            await bench.claim()
        root = await bench.one.root(bench.log)
        assert root is not None
        assert (root.state, root.epoch) == (RootState.DELETED, 2)

    async def test_closing_makes_a_missing_last_page_closed(self, bench: Bench) -> None:
        hold = await hold_that_dies_at_its_roll(bench)
        for _ in range(4):
            await bench.publish(hold)
        root = await bench.one.root(bench.log)
        closed = await bench.one.close_tail(bench.log, root, "one")
        assert closed is not None
        assert (closed.state, closed.epoch, closed.total) == (PageState.CLOSED, 2, 4)
        assert len(await bench.read()) == 4

    async def test_the_next_generation_is_empty_and_its_ids_are_higher(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = await bench.publish(hold, 3, Shared(pointer=3), key=KEY)
        await bench.one.delete(bench.log, "one")
        bench.generation = 2
        again = await bench.claim(bench.other, "other")
        assert again.epoch == 3
        assert (again.page, again.pointer) == (log_key_after(ids[-1]), ids[-1])
        assert (again.root.floor, again.root.gone) == (again.page, again.page)
        assert await again.marks.find(1, KEY) == []
        assert await bench.read() == []
        later = await bench.publish(again, 2)
        assert await bench.read() == later
        assert await bench.read(LogId(bench.topic, 1)) == []
        assert again.head.total == 2

    async def test_an_older_generation_is_not_claimed_or_deleted(self, bench: Bench) -> None:
        await bench.one.delete(bench.log, "one")
        old, bench.generation = bench.log, 2
        hold = await bench.claim()
        with pytest.raises(StaleGeneration):
            await bench.one.claim(old, "one")
        with pytest.raises(StaleGeneration):
            await bench.one.delete(old, "one")
        ids = await bench.publish(hold)
        assert await bench.read() == ids

    async def test_clearing_a_dead_generation_keeps_the_live_one(self, bench: Bench) -> None:
        ids: list[LogKey] = []
        for generation in (1, 2, 3):
            bench.generation = generation
            hold = await bench.claim()
            ids = [key for _ in range(9) for key in await bench.publish(hold)]
            if generation < 3:
                await bench.one.delete(bench.log, "one")
        went = 0
        for generation in (1, 2, 3, 4):
            after: LogKey | None = LOG_KEY_MIN
            while after is not None:
                some, after = await sweep.clear_generation(
                    bench.one.resolver, bench.topic, generation, after, 2
                )
                went += some
        assert went == 18
        assert await bench.read() == ids
        head, turned = await sweep.turn_gone(bench.one.resolver, LogId(bench.topic, 1), LOG_KEY_MIN)
        assert head is not None
        assert not turned


class PayloadContract(LogSuite):
    """Payload logs: storing, publishing, dropping."""

    @pytest.fixture
    def payloads(self, bench: Bench) -> PayloadLogs:
        """Give the payload logs of the first node."""
        return PayloadLogs(bench.one, "one")

    async def test_a_sealed_payload_log_is_readable_and_takes_no_more(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        before = await bench.publish(hold)
        part = await payloads.open(hold, -7)
        assert part.epoch == hold.epoch
        stored = [r for _ in range(6) for r in await bench.publish(part, 2, Shared(is_stored=True))]
        sealed = await payloads.seal(hold, -7)
        assert sealed.was_open
        assert sealed.tail is not None
        assert (sealed.root.state, sealed.root.at) == (RootState.SEALED, before[-1])
        assert (sealed.tail.state, sealed.tail.total) == (PageState.CLOSED, 12)
        assert [row[:2] for row in await bench.rows(log=part.log)] == [
            (key, payload_of(key)) for key in stored
        ]
        reader = bench.other.reader(part.log, LOG_KEY_MIN)
        while not reader.ended:
            assert not reader.is_closed
            await reader.next(1)
        assert reader.is_closed
        with pytest.raises(Fenced):
            await bench.publish(part, 1, Shared(is_stored=True))
        with pytest.raises(LogClosed) as closed:
            await payloads.open(hold, -7)
        assert closed.value.root.state is RootState.SEALED

    async def test_sealing_again_returns_the_current_state(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        await payloads.open(hold, 7)
        at = (await payloads.seal(hold, 7)).root.at
        [reference] = await bench.publish(hold, 1, Shared(number=7), payloads=[b""])
        again = await payloads.seal(hold, 7)
        assert (again.was_open, again.root.at, again.root.state) == (False, at, RootState.SEALED)
        await payloads.mark_published(hold, 7, reference)
        published = await payloads.seal(hold, 7)
        assert (published.root.state, published.root.reference) == (
            RootState.PUBLISHED,
            reference,
        )

    async def test_a_log_without_stores_can_be_sealed(
        self, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        sealed = await payloads.seal(hold, 7)
        assert sealed.tail is not None
        assert (sealed.was_open, sealed.tail.state, sealed.tail.total) == (
            True,
            PageState.CLOSED,
            0,
        )
        with pytest.raises(LogClosed):
            await payloads.open(hold, 7)

    async def test_a_closed_payload_log_that_is_not_sealed_takes_no_messages(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        part = await payloads.open(hold, 7)
        await bench.one.close_tail(part.log, part.root, "one", hold.epoch)
        with pytest.raises(LogClosed):
            await payloads.open(hold, 7)
        assert (await payloads.seal(hold, 7)).was_open

    async def test_a_former_leader_can_not_open_store_or_seal(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        old = await payloads.open(hold, 7)
        second = await bench.claim(bench.other, "other")
        theirs = await PayloadLogs(bench.other, "other").open(second, 7)
        assert theirs.epoch == second.epoch
        with pytest.raises(Fenced):
            await bench.publish(old, 1, Shared(is_stored=True))
        with pytest.raises(Fenced):
            await payloads.open(hold, 7)
        with pytest.raises(Fenced):
            await payloads.seal(hold, 7)
        kept = await bench.publish(theirs, 1, Shared(is_stored=True))
        assert await bench.read(theirs.log) == kept

    async def test_opening_again_continues_after_the_stored_messages(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        table = HookedTable(bench.table)
        first = await PayloadLogs(Logs(table, SystemClock(), bounds=SMALL), "one").open(hold, 7)
        ids = await bench.publish(first, 3, Shared(is_stored=True))
        again = await payloads.open(hold, 7)
        assert (again.pointer, again.epoch) == (ids[-1], first.epoch)
        # Another hold of the same epoch wrote the head, so this change is not made.
        gate = Gate()
        table.on("append", gate.after)
        storing = asyncio.ensure_future(bench.publish(first, 1, Shared(is_stored=True)))
        await gate.reached.wait()
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        assert first.done
        ids += await bench.publish(again, 1, Shared(is_stored=True))
        assert await bench.read(again.log) == ids

    async def test_logs_are_listed_with_their_roots(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        for number in (3, 5, 9):
            await payloads.open(hold, number)
        found = await payloads.roots(bench.topic, 1, 8)
        assert [log.number for log, _ in found] == [3, 5]
        assert [log.number for log, _ in await payloads.roots(bench.topic, 1, 9, after=3)] == [5, 9]

    async def test_a_payload_log_is_dropped_then_emptied_then_forgotten(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        part = await payloads.open(hold, 7)
        kept = await payloads.open(hold, 8)
        for _ in range(6):
            await bench.publish(part, 2, Shared(is_stored=True))
        ids = await bench.publish(kept, 1, Shared(is_stored=True))
        await payloads.seal(hold, 7)
        assert await payloads.empty(part.log) == 0
        await payloads.drop(hold, 7, 1234)
        root = await payloads.root(part.log)
        assert root is not None
        assert (root.state, root.dropped_ms) == (RootState.DROPPED, 1234)
        assert await payloads.empty(part.log) > 0
        assert await payloads.empty(part.log) == 0
        assert await bench.read(part.log) == []
        with pytest.raises(LogClosed):
            await payloads.open(hold, 7)
        await payloads.forget(part.log)
        assert await payloads.root(part.log) is None
        assert await bench.read(kept.log) == ids

    async def test_logs_of_dead_generations_are_listed(
        self, bench: Bench, hold: LogHold, payloads: PayloadLogs
    ) -> None:
        await payloads.open(hold, 7)
        await payloads.open(hold, -7)
        await bench.one.delete(bench.log, "one")
        bench.generation = 2
        again = await bench.claim()
        await payloads.open(again, 8)
        dead = await payloads.of_generations(bench.topic, 2)
        assert {log.number for log in dead} == {7, -7}
        for log in dead:
            await payloads.forget(log)
        assert await payloads.of_generations(bench.topic, 2) == []


class RecordContract(LogSuite):
    """Records by compare-and-set."""

    async def test_records_change_by_version(self, bench: Bench) -> None:
        records = Records(bench.one.resolver)
        key = f"contract/{bench.topic.topic}".encode()
        assert await records.get(key) is None
        assert await records.put_if(key, b"wrong", b"x") is None
        first = await records.put_if(key, None, b"a")
        assert first is not None
        assert await records.put_if(key, None, b"b") is None
        second = await records.put_if(key, first, b"")
        assert second is not None
        assert await records.put_if(key, first, b"c") is None
        found = await records.get(key)
        assert found is not None
        assert (found.value, found.version) == (b"", second)

    async def test_a_value_that_changed_back_has_a_new_version(self, bench: Bench) -> None:
        records = Records(bench.one.resolver)
        key = f"contract/{bench.topic.topic}".encode()
        first = await records.put_if(key, None, b"a")
        other = await records.put_if(key, first, b"b")
        assert await records.put_if(key, other, b"a") is not None
        assert await records.put_if(key, first, b"c") is None

    async def test_of_many_at_once_one_wins(self, bench: Bench) -> None:
        records = Records(bench.one.resolver)
        key = f"contract/{bench.topic.topic}".encode()
        puts = await asyncio.gather(
            *(records.put_if(key, None, b"%d" % number) for number in range(8))
        )
        assert sum(put is not None for put in puts) == 1

    async def test_a_prefix_is_scanned_in_order(self, bench: Bench) -> None:
        records = Records(bench.one.resolver)
        prefix = f"contract/{bench.topic.topic}/".encode()
        for name in (b"b", b"a", b"c"):
            await records.put_if(prefix + name, None, name)
        found = await records.scan_prefix(prefix)
        assert [(key, record.value) for key, record in found] == [
            (prefix + name, name) for name in (b"a", b"b", b"c")
        ]

"""The contract of the log protocol over a table, as tests; it runs over every table.

Each test has a topic of its own, since all tests may share one store. Pages are small, so that a few
messages fill several. *One* and *other* are two nodes over the same table.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Callable

import pytest

from broker.clock import SystemClock
from broker.errors import BodyTooLarge, BrokerError, Fenced
from broker.model import (
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    LogKey,
    TopicId,
    log_key,
    log_key_after,
    log_key_before,
)
from broker.storage.entry import PLAIN, Shared
from broker.storage.hold import LogHold
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from broker.storage.root import RootState
from broker.storage.table import Table
from tests.kit.contract.log_attributes import AttributesContract
from tests.kit.contract.log_bench import (
    ALL,
    KEY,
    SMALL,
    Bench,
    LogSuite,
    all_of,
    backwards,
    hold_that_dies_at_its_roll,
    payload_of,
    rows_of,
)
from tests.kit.contract.log_chain import ChainContract
from tests.kit.contract.log_edits import FloorContract, MarkContract, RollbackContract
from tests.kit.contract.log_lifetime import GenerationContract, PayloadContract, RecordContract
from tests.kit.contract.table import TableHarness


class ClaimContract(LogSuite):
    """Claims, fencing, handoff, and the proof that a hold is current."""

    async def test_a_log_without_claims_has_no_ends_and_no_messages(self, bench: Bench) -> None:
        assert await bench.one.ends(bench.log) is None
        assert await bench.one.root(bench.log) is None
        assert await bench.rows() == []

    async def test_the_first_claim_is_epoch_1(self, bench: Bench, hold: LogHold) -> None:
        assert (hold.epoch, hold.done, hold.log, hold.pointer) == (1, False, bench.log, LOG_KEY_MIN)
        ends = await bench.other.ends(bench.log)
        assert ends is not None
        assert (ends.root, ends.tail) == (hold.root, hold.head)
        assert (ends.root.state, ends.root.epoch, hold.head.owner) == (RootState.LIVE, 1, "one")

    async def test_each_claim_raises_the_epoch(self, bench: Bench) -> None:
        assert [(await bench.claim()).epoch for _ in range(4)] == [1, 2, 3, 4]

    async def test_a_claim_fences_the_former_holder(self, bench: Bench, hold: LogHold) -> None:
        kept = await bench.publish(hold, 3)
        assert await hold.proof()
        second = await bench.claim(bench.other, "other")
        assert second.pointer == kept[-1]
        with pytest.raises(Fenced):
            await bench.publish(hold)
        assert (hold.done, second.done) == (True, False)
        assert not await hold.proof()
        with pytest.raises(Fenced):
            await bench.publish(hold)
        kept += await bench.publish(second)
        assert await bench.read() == kept

    async def test_a_fenced_holder_fails_its_proof_and_is_done(
        self, bench: Bench, hold: LogHold
    ) -> None:
        await bench.claim(bench.other, "other")
        if not bench.table.is_alone:
            assert not await hold.proof()
            assert hold.done

    async def test_every_change_of_a_fenced_holder_is_refused(
        self, bench: Bench, hold: LogHold
    ) -> None:
        rows = await bench.publish(hold, 1, Shared(pointer=7))
        await bench.publish(hold, 1)
        second = await bench.claim(bench.other, "other")
        before = await bench.one.ends(bench.log)
        changes: tuple[Callable[[LogHold], Awaitable[object]], ...] = (
            lambda held: held.rollback(7, rows[0], rows[0]),
            lambda held: held.roll_expired(LOG_KEY_MAX),
            lambda held: held.end_lives(held.page, 1 << 60),
            lambda held: held.hand_off(),
        )
        for change in changes:
            zombie = await _zombie(bench, second)
            with pytest.raises(BrokerError):
                await change(zombie)
            assert zombie.done
        ends = await bench.one.ends(bench.log)
        assert before is not None
        assert ends is not None
        assert (ends.root.floor, ends.tail and ends.tail.owner) == (before.root.floor, "other")

    async def test_one_of_two_claims_at_once_holds_the_log(self, bench: Bench) -> None:
        claims = await asyncio.gather(
            bench.claim(), bench.claim(bench.other, "other"), return_exceptions=True
        )
        holds = [claim for claim in claims if isinstance(claim, LogHold)]
        assert holds
        assert all(isinstance(claim, BrokerError) for claim in claims if claim not in holds)
        newest = max(holds, key=lambda hold: hold.epoch)
        kept = await bench.publish(newest)
        for hold in holds:
            if hold is not newest:
                with pytest.raises(Fenced):
                    await bench.publish(hold)
        assert await bench.read() == kept

    async def test_a_handoff_leaves_the_log_without_owner(
        self, bench: Bench, hold: LogHold
    ) -> None:
        rows = await bench.publish(hold, 2, key=KEY)
        assert await hold.hand_off()
        assert hold.done
        assert not await hold.hand_off()
        ends = await bench.other.ends(bench.log)
        assert ends is not None
        assert ends.tail is not None
        assert (ends.tail.owner, ends.tail.epoch, ends.tail.marked) == ("", 1, rows[-1])
        with pytest.raises(Fenced):
            await bench.publish(hold)
        again = await bench.claim(bench.other, "other")
        assert again.epoch == 2
        assert await bench.read() == rows

    async def test_many_takeovers_keep_all_messages(self, bench: Bench) -> None:
        kept: list[LogKey] = []
        for number in range(30):
            hold = await bench.claim([bench.one, bench.other][number % 2], f"node {number % 3}")
            kept += await bench.publish(hold, 2)
        assert await bench.read() == kept
        reader = bench.other.reader(bench.log, LOG_KEY_MIN)
        assert await backwards(reader, 3) == kept[::-1]

    async def test_concurrent_proofs_all_succeed(self, hold: LogHold) -> None:
        assert await asyncio.gather(*(hold.proof() for _ in range(20))) == [True] * 20

    async def test_a_proof_while_appends_and_rolls_go_on_holds(
        self, bench: Bench, hold: LogHold
    ) -> None:
        async def publishes() -> None:
            for _ in range(12):
                await bench.publish(hold)

        publishing = asyncio.ensure_future(publishes())
        while not publishing.done():
            assert await hold.proof()
            await asyncio.sleep(0)
        await publishing


async def _zombie(bench: Bench, second: LogHold) -> LogHold:
    """Return a hold that another claim has fenced, and that has not noticed."""
    logs = Logs(bench.table, SystemClock(), bounds=SMALL)
    zombie = await logs.claim(bench.log, "zombie")
    former = second.root
    second.root = (await bench.other.claim(bench.log, "other")).root
    assert former.epoch < second.root.epoch
    return zombie


class AppendContract(LogSuite):
    """Appends: messages, heads, order, limits."""

    async def test_a_reader_returns_messages_with_all_their_fields(
        self, bench: Bench, hold: LogHold
    ) -> None:
        plain = await bench.publish(hold, 2)
        tied = await bench.publish(hold, 1, Shared(pointer=5, lifetime_ms=60_000))
        reference = await bench.publish(hold, 1, Shared(number=-3, pointer=-3), payloads=[b""])
        reader = bench.other.reader(bench.log, LOG_KEY_MIN)
        first = await all_of(reader)
        assert [(e.ids(), e.pointer, e.lifetime_ms, e.number) for e in first] == [
            (plain, None, None, None),
            (tied, 5, 60_000, None),
            (reference, -3, None, -3),
        ]
        assert first[0].payload(1) == payload_of(plain[1])
        assert first[2].is_reference

    async def test_the_head_counts_messages_bytes_and_entries(
        self, bench: Bench, hold: LogHold
    ) -> None:
        rows = await bench.publish(hold, 3, payloads=[b"a", b"", b"cde"])
        assert (hold.head.total, hold.head.bytes, hold.head.cells) == (3, 4, 1)
        assert hold.head.pointer == rows[-1]
        ends = await bench.other.ends(bench.log)
        assert ends is not None
        assert ends.tail == hold.head

    async def test_each_change_has_a_token_of_its_own(self, bench: Bench, hold: LogHold) -> None:
        tokens = {hold.head.token}
        for _ in range(6):
            await bench.publish(hold)
            tokens.add(hold.head.token)
        assert len(tokens) == 7

    async def test_appends_made_at_once_take_effect_in_order(
        self, bench: Bench, hold: LogHold
    ) -> None:
        seen: list[int] = []

        async def publish(number: int, ids: list[LogKey]) -> None:
            added = bench.entries(hold, ids, PLAIN)
            await hold.append(added, messages=len(ids), payload_bytes=0)
            seen.append(number)

        batches = [bench.ids(1 + number % 4) for number in range(12)]
        await asyncio.gather(*(publish(number, ids) for number, ids in enumerate(batches)))
        assert seen == sorted(seen)
        assert await bench.read() == [row for batch in batches for row in batch]

    async def test_a_reader_sees_whole_appends_only(self, bench: Bench, hold: LogHold) -> None:
        ids = bench.ids(40)
        batches = [ids[first : first + 4] for first in range(0, 40, 4)]
        ends = {batch[-1] for batch in batches} | {None}

        async def publishes() -> None:
            for batch in batches:
                half = len(batch) // 2
                added = [
                    *bench.entries(hold, batch[:half], PLAIN),
                    *bench.entries(hold, batch[half:], Shared(pointer=3)),
                ]
                await hold.append(added, messages=4, payload_bytes=0)

        publishing = asyncio.ensure_future(publishes())
        while not publishing.done():
            found = await bench.read()
            assert found == ids[: len(found)]
            assert (found[-1] if found else None) in ends
            await asyncio.sleep(0)
        await publishing
        assert await bench.read() == ids

    async def test_topics_whose_names_are_alike_are_apart(
        self, bench: Bench, hold: LogHold
    ) -> None:
        names = [bench.topic.topic + "2", bench.topic.topic[:-1]]
        kept = {bench.log: await bench.publish(hold, 2)}
        for name in names:
            near = dataclasses.replace(bench, topic=bench.topic._replace(topic=name))
            kept[near.log] = await near.publish(await near.claim(), 2)
        for log, rows in kept.items():
            assert await bench.read(log) == rows

    async def test_the_smallest_and_largest_ids_are_stored(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = [
            log_key(0, 1),
            log_key(0, 0xFFFF),
            log_key(1, 0),
            log_key_before(LOG_KEY_MAX),
            LOG_KEY_MAX,
        ]
        for row in ids[:3]:
            await hold.append(bench.entries(hold, [row], PLAIN), messages=1, payload_bytes=0)
        await hold.append(bench.entries(hold, ids[3:], PLAIN), messages=2, payload_bytes=0)
        assert await bench.read() == ids

    async def test_many_messages_are_several_entries_of_one_append(
        self, bench: Bench, hold: LogHold
    ) -> None:
        rows = await bench.publish(hold, 3000)
        assert hold.head.total == 3000
        assert await bench.read() == rows

    async def test_a_big_message_is_an_entry_of_its_own(self, bench: Bench, hold: LogHold) -> None:
        big = secrets.token_bytes(min(300_000, bench.one.entry_bytes_max))
        rows = await bench.publish(hold, payloads=[b"before", big, b"behind"])
        found = await bench.rows()
        assert [row[:2] for row in found] == list(
            zip(rows, [b"before", big, b"behind"], strict=True)
        )

    async def test_a_message_too_large_for_a_cell_is_refused_and_the_hold_goes_on(
        self, bench: Bench, hold: LogHold
    ) -> None:
        if bench.table.cell_bytes_max > 1 << 25:
            return  # Too large for a test; a table with smaller cells covers this.
        with pytest.raises(BodyTooLarge):
            await bench.publish(hold, payloads=[bytes(bench.table.cell_bytes_max + 1)])
        kept = await bench.publish(hold)
        assert await bench.read() == kept

    async def test_ids_that_do_not_rise_are_refused(self, bench: Bench, hold: LogHold) -> None:
        rows = await bench.publish(hold, 2)
        with pytest.raises(AssertionError):
            await hold.append(bench.entries(hold, rows[1:], PLAIN), messages=1, payload_bytes=0)
        assert await bench.read() == rows

    async def test_everything_is_there_after_reopening(self, harness: TableHarness) -> None:
        table = await harness.open()
        topic = TopicId("contract", f"log-{secrets.token_hex(6)}")
        one, other = (Logs(table, SystemClock(), bounds=SMALL) for _ in "12")
        bench = Bench(table, topic, one, other)
        hold = await bench.claim()
        rows = await bench.publish(hold, 3, Shared(pointer=4), key=KEY)
        rows += await bench.publish(hold, 9)
        await hold.rollback(4, rows[0], rows[1])
        await hold.hand_off()
        before = await bench.rows()
        await table.close()
        table = await harness.open()
        bench.one, bench.other = (Logs(table, SystemClock(), bounds=SMALL) for _ in "12")
        bench.table = table
        assert await bench.rows() == before
        assert [row[3] for row in before] == [True, True] + [False] * 10
        again = await bench.claim()
        assert again.epoch == 2
        assert [mark.first for mark in await again.marks.find(1, KEY)] == rows[:1]
        await bench.publish(again)
        await table.close()


class RollContract(LogSuite):
    """Full pages."""

    async def test_a_full_page_is_sealed_and_the_next_one_made(
        self, bench: Bench, hold: LogHold
    ) -> None:
        rows = [row for _ in range(9) for row in await bench.publish(hold, 2)]
        await hold.settled()
        assert hold.head.prev == log_key_after(rows[7])
        assert hold.page == log_key_after(rows[15])
        assert (hold.head.cells, hold.head.total, hold.root.page) == (1, 18, hold.page)
        pages = await hold.chain(LOG_KEY_MIN, LOG_KEY_MAX)
        assert [head.is_sealed for _, head in pages] == [True, True, False]
        assert pages[-1][1].is_open
        assert await bench.read() == rows

    async def test_a_page_is_full_by_its_bytes_too(self, table: Table, bench: Bench) -> None:
        logs = Logs(table, SystemClock(), bounds=PageBounds(bytes_max=5000))
        hold = await bench.claim(logs)
        rows = await bench.publish(hold, payloads=[bytes(3000)])
        assert hold.head.is_open
        rows += await bench.publish(hold, payloads=[bytes(3000)])
        rows += await bench.publish(hold, payloads=[bytes(10)])
        assert hold.page == log_key_after(rows[1])
        assert await bench.read() == rows

    async def test_a_claim_goes_on_where_the_log_ends(self, bench: Bench, hold: LogHold) -> None:
        kept = [row for _ in range(10) for row in await bench.publish(hold)]
        second = await bench.claim(bench.other, "other")
        assert (second.pointer, second.head.total) == (kept[-1], 10)
        kept += [row for _ in range(5) for row in await bench.publish(second)]
        assert await bench.read() == kept

    async def test_a_claim_makes_the_page_after_a_sealed_last_page(self, bench: Bench) -> None:
        hold = await hold_that_dies_at_its_roll(bench)
        rows = [row for _ in range(4) for row in await bench.publish(hold)]
        await hold.settled()
        assert hold.done
        assert await bench.read() == rows
        second = await bench.claim(bench.other, "other")
        assert (second.epoch, second.page) == (2, log_key_after(rows[-1]))
        rows += await bench.publish(second)
        assert await bench.read() == rows


class ReadContract(LogSuite):
    """Readers: bounds, limits, both directions."""

    @pytest.fixture
    async def ids(self, bench: Bench, hold: LogHold) -> list[LogKey]:
        """Give 22 messages in 10 entries and three pages."""
        sizes = (1, 3, 2, 1, 4, 1, 2, 3, 1, 4)
        kept = []
        for number, size in enumerate(sizes):
            shared = Shared(pointer=number) if number % 3 == 1 else PLAIN
            kept += await bench.publish(hold, size, shared)
        await hold.settled()
        return kept

    async def test_every_pair_of_bounds(self, bench: Bench, ids: list[LogKey]) -> None:
        edges = [LOG_KEY_MIN, ids[0], ids[2], ids[3], ids[7], ids[10], ids[-1], LOG_KEY_MAX]
        for after in edges:
            for through in edges:
                found = [row[0] for row in await bench.rows(after, through)]
                assert found == [row for row in ids if after < row <= through]

    @pytest.mark.parametrize("bytes_max", [1, 60, 200, 1000])
    async def test_limits_anywhere_in_a_page(
        self, bench: Bench, ids: list[LogKey], bytes_max: int
    ) -> None:
        found = [row[0] for row in await bench.rows(bytes_max=bytes_max)]
        assert found == ids

    @pytest.mark.parametrize("limits", [(1, ALL), (2, ALL), (100, 1), (100, 150), (100, ALL)])
    async def test_backwards(
        self, bench: Bench, ids: list[LogKey], hold: LogHold, limits: tuple[int, int]
    ) -> None:
        await hold.rollback(1, ids[0], ids[-1])
        await hold.rollback(4, ids[0], ids[-1])
        reader = bench.other.reader(bench.log, LOG_KEY_MIN)
        assert await backwards(reader, *limits) == ids[::-1]

    async def test_backwards_between_bounds_shows_all_entries_that_touch_them(
        self, bench: Bench, ids: list[LogKey]
    ) -> None:
        for after, through in ((3, 15), (0, 1), (10, 21), (5, 5)):
            reader = bench.other.reader(bench.log, ids[after], ids[through])
            found = await backwards(reader, 2)
            assert found == sorted(set(found), reverse=True)
            wanted = ids[after + 1 : through + 1]
            assert set(wanted) <= set(found)

    async def test_a_reader_goes_on_when_the_log_grew(
        self, bench: Bench, ids: list[LogKey], hold: LogHold
    ) -> None:
        reader = bench.other.reader(bench.log, ids[-1])
        assert await reader.next(ALL) == []
        assert reader.ended
        more = [row for _ in range(6) for row in await bench.publish(hold)]
        reader.go_on()
        assert [row[0] for row in rows_of(await all_of(reader))] == more

    async def test_rolled_back_messages_are_read_with_every_limit(
        self, bench: Bench, ids: list[LogKey], hold: LogHold
    ) -> None:
        await hold.rollback(1, ids[1], ids[2])
        for bytes_max in (1, 150, 300, ALL):
            found = [row[0] for row in await bench.rows(bytes_max=bytes_max) if row[3]]
            assert found == ids[1:3]


class LogContract(
    ClaimContract,
    AppendContract,
    AttributesContract,
    ChainContract,
    RollContract,
    ReadContract,
    RollbackContract,
    MarkContract,
    FloorContract,
    GenerationContract,
    PayloadContract,
    RecordContract,
):
    """All suites of the log; subclass it with a ``harness`` fixture."""


__all__ = ["LogContract"]

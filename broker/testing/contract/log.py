"""The contract of the log protocol over a table, as tests: to be run over every table.

Each test has a topic of its own, since all tests may share one store. Pages are small, so that a few
messages fill several. *One* and *other* are two nodes over the same table.
"""

# ruff: noqa: SLF001  What happens between two steps is brought about from inside.

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import pytest

from broker.clock import SystemClock
from broker.errors import BodyTooLarge, BrokerError, Fenced
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_after, row_before, row_id
from broker.storage import sweeping
from broker.storage.entry import PLAIN, Entry, Mark, Shared, entries_of
from broker.storage.head import NO_END, PageState
from broker.storage.hold import Hold, PageBounds
from broker.storage.keys import LogId
from broker.storage.log import Deleted, Logs, StaleGeneration
from broker.storage.payloads import LogClosed, PayloadLogs
from broker.storage.reading import LogReader
from broker.storage.records import Records
from broker.storage.root import RootState
from broker.storage.table import Table
from broker.testing.contract.table import TableHarness

SMALL: Final = PageBounds(cells_max=4)
BODY: Final = bytes(range(32))
KEY: Final = b"k" * 16
ALL: Final = 1 << 26

Row = tuple[RowId, bytes, int | None, bool]
"""(id, payload, write pointer, whether it was rolled back)."""


def payload_of(row: RowId) -> bytes:
    """Return the payload that ``Bench.publish`` gives a message."""
    return b"payload of " + row.hex().encode()


@dataclasses.dataclass
class Bench:
    """A topic of one test, two nodes, and ids that rise."""

    table: Table
    topic: TopicId
    one: Logs
    other: Logs
    generation: int = 1
    ms: int = 1_000_000

    @property
    def log(self) -> LogId:
        """The topic's message log."""
        return LogId(self.topic, self.generation)

    def ids(self, count: int) -> list[RowId]:
        """Return the next ids."""
        self.ms += count
        return [row_id(self.ms - count + i, 7) for i in range(count)]

    async def claim(self, logs: Logs | None = None, name: str = "one") -> Hold:
        """Claim the topic's log."""
        return await (logs or self.one).claim(self.log, name)

    async def publish(
        self,
        hold: Hold,
        count: int = 1,
        shared: Shared = PLAIN,
        *,
        key: bytes | None = None,
        payloads: Sequence[bytes] | None = None,
    ) -> list[RowId]:
        """Append messages as one entry, or as many as they need; return their ids."""
        ids = self.ids(count if payloads is None else len(payloads))
        added = self.entries(hold, ids, shared, payloads)
        if key is not None:
            added[0].marks = (Mark(1, key, ids[0], ids[-1], BODY),)
        size = sum(entry.payload_bytes() for entry in added)
        await hold.append(added, messages=len(ids), payload_bytes=size)
        return ids

    @staticmethod
    def entries(
        hold: Hold, ids: Sequence[RowId], shared: Shared, payloads: Sequence[bytes] | None = None
    ) -> list[Entry]:
        """Return messages as entries."""
        return entries_of(hold.epoch, ids, payloads or [payload_of(row) for row in ids], shared)

    async def rows(
        self,
        after: RowId = ROW_ID_MIN,
        through: RowId | None = None,
        *,
        log: LogId | None = None,
        bytes_max: int = ALL,
    ) -> list[Row]:
        """Read a log from storage, by the other node."""
        reader = self.other.reader(log or self.log, after, through)
        out: list[Row] = []
        while not reader.ended:
            out += rows_of(await reader.next(bytes_max))
        return [row for row in out if row[0] > after and row[0] <= (through or ROW_ID_MAX)]

    async def read(self, log: LogId | None = None) -> list[RowId]:
        """Return the ids of a log's messages."""
        return [row[0] for row in await self.rows(log=log)]

    async def hidden(self) -> list[RowId]:
        """Return the ids of messages that were rolled back."""
        return [row[0] for row in await self.rows() if row[3]]

    async def clear(self, hold: Hold, pages_max: int = 2) -> int:
        """Remove what lies below the floor, in slices; return how many messages went."""
        went, more = 0, True
        while more:
            some, more = await sweeping.clear_below_floor(self.one.resolver, hold, pages_max)
            went += some
        return went


def rows_of(found: Sequence[Entry]) -> list[Row]:
    """Return messages of entries."""
    return [
        (row, entry.payload(place), entry.pointer, entry.is_rolled_back(row))
        for entry in found
        if not entry.is_stub
        for place, row in enumerate(entry.ids())
    ]


async def backwards(reader: LogReader, cells_max: int, bytes_max: int = ALL) -> list[RowId]:
    """Return the ids of what a reader shows backwards."""
    out: list[RowId] = []
    while not reader.ended:
        for entry in await reader.before(cells_max, bytes_max):
            out += entry.ids()[::-1]
    return out


class LogSuite:
    """The fixtures that all suites share."""

    @pytest.fixture
    async def table(self, harness: TableHarness) -> AsyncIterator[Table]:
        """Give the opened table."""
        opened = await harness.open()
        yield opened
        await opened.close()

    @pytest.fixture
    def bench(self, table: Table) -> Bench:
        """Give a topic, and two nodes."""
        topic = TopicId("contract", f"log-{secrets.token_hex(6)}")
        one, other = (Logs(table, SystemClock(), bounds=SMALL) for _ in "12")
        return Bench(table, topic, one, other)

    @pytest.fixture
    async def hold(self, bench: Bench) -> Hold:
        """Give a hold of the first node."""
        return await bench.claim()


class ClaimContract(LogSuite):
    """Claims, fencing, handoff, proof."""

    async def test_a_log_without_claims_has_no_ends_and_no_messages(self, bench: Bench) -> None:
        assert await bench.one.ends(bench.log) is None
        assert await bench.one.root(bench.log) is None
        assert await bench.rows() == []

    async def test_the_first_claim_is_epoch_1(self, bench: Bench, hold: Hold) -> None:
        assert (hold.epoch, hold.done, hold.log, hold.pointer) == (1, False, bench.log, ROW_ID_MIN)
        ends = await bench.other.ends(bench.log)
        assert ends is not None
        assert (ends.root, ends.tail) == (hold.root, hold.head)
        assert (ends.root.state, ends.root.epoch, hold.head.owner) == (RootState.LIVE, 1, "one")

    async def test_each_claim_raises_the_epoch(self, bench: Bench) -> None:
        assert [(await bench.claim()).epoch for _ in range(4)] == [1, 2, 3, 4]

    async def test_a_claim_fences_the_former_holder(self, bench: Bench, hold: Hold) -> None:
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

    async def test_a_fenced_holder_proves_nothing_and_is_done(
        self, bench: Bench, hold: Hold
    ) -> None:
        await bench.claim(bench.other, "other")
        if not bench.table.is_alone:
            assert not await hold.proof()
            assert hold.done

    async def test_every_change_of_a_fenced_holder_is_refused(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 1, Shared(pointer=7))
        await bench.publish(hold, 1)
        second = await bench.claim(bench.other, "other")
        before = await bench.one.ends(bench.log)
        changes: tuple[Callable[[Hold], Awaitable[object]], ...] = (
            lambda held: held.rollback(7, rows[0], rows[0]),
            lambda held: held.roll_expired(ROW_ID_MAX),
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
        holds = [claim for claim in claims if isinstance(claim, Hold)]
        assert holds
        assert all(isinstance(claim, BrokerError) for claim in claims if claim not in holds)
        newest = max(holds, key=lambda hold: hold.epoch)
        kept = await bench.publish(newest)
        for hold in holds:
            if hold is not newest:
                with pytest.raises(Fenced):
                    await bench.publish(hold)
        assert await bench.read() == kept

    async def test_a_handoff_leaves_the_log_without_owner(self, bench: Bench, hold: Hold) -> None:
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
        kept: list[RowId] = []
        for number in range(30):
            hold = await bench.claim([bench.one, bench.other][number % 2], f"node {number % 3}")
            kept += await bench.publish(hold, 2)
        assert await bench.read() == kept
        reader = bench.other.reader(bench.log, ROW_ID_MIN)
        assert await backwards(reader, 3) == kept[::-1]

    async def test_a_proof_shared_by_many_is_one_for_each(self, hold: Hold) -> None:
        assert await asyncio.gather(*(hold.proof() for _ in range(20))) == [True] * 20

    async def test_a_proof_while_appends_and_rolls_go_on_holds(
        self, bench: Bench, hold: Hold
    ) -> None:
        async def publishes() -> None:
            for _ in range(12):
                await bench.publish(hold)

        publishing = asyncio.ensure_future(publishes())
        while not publishing.done():
            assert await hold.proof()
            await asyncio.sleep(0)
        await publishing


async def _zombie(bench: Bench, second: Hold) -> Hold:
    """Return a hold that another fenced, and that does not know it."""
    logs = Logs(bench.table, SystemClock(), bounds=SMALL)
    zombie = await logs.claim(bench.log, "zombie")
    former = second.root
    second.root = (await bench.other.claim(bench.log, "other")).root
    assert former.epoch < second.root.epoch
    return zombie


class AppendContract(LogSuite):
    """What an append writes."""

    async def test_messages_come_back_with_all_they_had(self, bench: Bench, hold: Hold) -> None:
        plain = await bench.publish(hold, 2)
        tied = await bench.publish(hold, 1, Shared(pointer=5, lifetime_ms=60_000))
        reference = await bench.publish(hold, 1, Shared(number=-3, pointer=-3), payloads=[b""])
        reader = bench.other.reader(bench.log, ROW_ID_MIN)
        first = await reader.next(ALL)
        assert [(e.ids(), e.pointer, e.lifetime_ms, e.number) for e in first] == [
            (plain, None, None, None),
            (tied, 5, 60_000, None),
            (reference, -3, None, -3),
        ]
        assert first[0].payload(1) == payload_of(plain[1])
        assert first[2].is_reference

    async def test_the_head_counts_messages_bytes_and_entries(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 3, payloads=[b"a", b"", b"cde"])
        assert (hold.head.total, hold.head.bytes, hold.head.cells) == (3, 4, 1)
        assert hold.head.pointer == rows[-1]
        ends = await bench.other.ends(bench.log)
        assert ends is not None
        assert ends.tail == hold.head

    async def test_each_change_has_a_token_of_its_own(self, bench: Bench, hold: Hold) -> None:
        tokens = {hold.head.token}
        for _ in range(6):
            await bench.publish(hold)
            tokens.add(hold.head.token)
        assert len(tokens) == 7

    async def test_appends_made_at_once_take_effect_in_order(
        self, bench: Bench, hold: Hold
    ) -> None:
        seen: list[int] = []

        async def publish(number: int, ids: list[RowId]) -> None:
            added = bench.entries(hold, ids, PLAIN)
            await hold.append(added, messages=len(ids), payload_bytes=0)
            seen.append(number)

        batches = [bench.ids(1 + number % 4) for number in range(12)]
        await asyncio.gather(*(publish(number, ids) for number, ids in enumerate(batches)))
        assert seen == sorted(seen)
        assert await bench.read() == [row for batch in batches for row in batch]

    async def test_a_reader_sees_whole_appends_only(self, bench: Bench, hold: Hold) -> None:
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

    async def test_topics_whose_names_are_alike_are_apart(self, bench: Bench, hold: Hold) -> None:
        names = [bench.topic.topic + "2", bench.topic.topic[:-1]]
        kept = {bench.log: await bench.publish(hold, 2)}
        for name in names:
            near = dataclasses.replace(bench, topic=bench.topic._replace(topic=name))
            kept[near.log] = await near.publish(await near.claim(), 2)
        for log, rows in kept.items():
            assert await bench.read(log) == rows

    async def test_ids_at_the_edges_of_what_an_id_can_hold(self, bench: Bench, hold: Hold) -> None:
        ids = [row_id(0, 1), row_id(0, 0xFFFF), row_id(1, 0), row_before(ROW_ID_MAX), ROW_ID_MAX]
        for row in ids[:3]:
            await hold.append(bench.entries(hold, [row], PLAIN), messages=1, payload_bytes=0)
        await hold.append(bench.entries(hold, ids[3:], PLAIN), messages=2, payload_bytes=0)
        assert await bench.read() == ids

    async def test_many_messages_are_several_entries_of_one_append(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 3000)
        assert hold.head.total == 3000
        assert await bench.read() == rows

    async def test_a_big_message_is_an_entry_of_its_own(self, bench: Bench, hold: Hold) -> None:
        big = secrets.token_bytes(min(300_000, bench.one.entry_bytes_max))
        rows = await bench.publish(hold, payloads=[b"before", big, b"behind"])
        found = await bench.rows()
        assert [row[:2] for row in found] == list(
            zip(rows, [b"before", big, b"behind"], strict=True)
        )

    async def test_what_no_cell_can_hold_is_refused_and_the_hold_goes_on(
        self, bench: Bench, hold: Hold
    ) -> None:
        if bench.table.cell_bytes_max > 1 << 25:
            return  # Larger than a test should be: a table with less room shows it.
        with pytest.raises(BodyTooLarge):
            await bench.publish(hold, payloads=[bytes(bench.table.cell_bytes_max + 1)])
        kept = await bench.publish(hold)
        assert await bench.read() == kept

    async def test_ids_that_do_not_rise_are_refused(self, bench: Bench, hold: Hold) -> None:
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
    """Pages that are full."""

    async def test_a_full_page_is_sealed_and_the_next_one_made(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = [row for _ in range(9) for row in await bench.publish(hold, 2)]
        await hold.settled()
        assert hold.head.prev == row_after(rows[7])
        assert hold.page == row_after(rows[15])
        assert (hold.head.cells, hold.head.total, hold.root.page) == (1, 18, hold.page)
        pages = await hold.chain(ROW_ID_MIN, ROW_ID_MAX)
        assert [head.state for _, head in pages] == [
            PageState.SEALED,
            PageState.SEALED,
            PageState.OPEN,
        ]
        assert await bench.read() == rows

    async def test_a_page_is_full_by_its_bytes_too(self, table: Table, bench: Bench) -> None:
        logs = Logs(table, SystemClock(), bounds=PageBounds(bytes_max=5000))
        hold = await bench.claim(logs)
        rows = await bench.publish(hold, payloads=[bytes(3000)])
        assert hold.head.is_open
        rows += await bench.publish(hold, payloads=[bytes(3000)])
        rows += await bench.publish(hold, payloads=[bytes(10)])
        assert hold.page == row_after(rows[1])
        assert await bench.read() == rows

    async def test_a_claim_goes_on_where_the_log_ends(self, bench: Bench, hold: Hold) -> None:
        kept = [row for _ in range(10) for row in await bench.publish(hold)]
        second = await bench.claim(bench.other, "other")
        assert (second.pointer, second.head.total) == (kept[-1], 10)
        kept += [row for _ in range(5) for row in await bench.publish(second)]
        assert await bench.read() == kept

    async def test_a_page_that_was_sealed_and_not_followed_is_followed_by_the_next_claim(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = [row for _ in range(3) for row in await bench.publish(hold)]
        hold._roll = _dies  # type: ignore[method-assign]
        rows += await bench.publish(hold)
        await hold.settled()
        assert hold.done
        assert await bench.read() == rows
        second = await bench.claim(bench.other, "other")
        assert (second.epoch, second.page) == (2, row_after(rows[-1]))
        rows += await bench.publish(second)
        assert await bench.read() == rows


async def _dies() -> None:
    raise Fenced("the node died before it made the next page")


class ReadContract(LogSuite):
    """Readers: bounds, limits, both directions."""

    @pytest.fixture
    async def rows(self, bench: Bench, hold: Hold) -> list[RowId]:
        """Give 22 messages in 10 entries and three pages."""
        sizes = (1, 3, 2, 1, 4, 1, 2, 3, 1, 4)
        kept = []
        for number, size in enumerate(sizes):
            shared = Shared(pointer=number) if number % 3 == 1 else PLAIN
            kept += await bench.publish(hold, size, shared)
        await hold.settled()
        return kept

    async def test_every_pair_of_bounds(self, bench: Bench, rows: list[RowId]) -> None:
        edges = [ROW_ID_MIN, rows[0], rows[2], rows[3], rows[7], rows[10], rows[-1], ROW_ID_MAX]
        for after in edges:
            for through in edges:
                found = [row[0] for row in await bench.rows(after, through)]
                assert found == [row for row in rows if after < row <= through]

    @pytest.mark.parametrize("bytes_max", [1, 60, 200, 1000])
    async def test_limits_anywhere_in_a_page(
        self, bench: Bench, rows: list[RowId], bytes_max: int
    ) -> None:
        found = [row[0] for row in await bench.rows(bytes_max=bytes_max)]
        assert found == rows

    @pytest.mark.parametrize("limits", [(1, ALL), (2, ALL), (100, 1), (100, 150), (100, ALL)])
    async def test_backwards(
        self, bench: Bench, rows: list[RowId], hold: Hold, limits: tuple[int, int]
    ) -> None:
        await hold.rollback(1, rows[0], rows[-1])
        await hold.rollback(4, rows[0], rows[-1])
        reader = bench.other.reader(bench.log, ROW_ID_MIN)
        assert await backwards(reader, *limits) == rows[::-1]

    async def test_backwards_between_bounds_shows_all_entries_that_touch_them(
        self, bench: Bench, rows: list[RowId]
    ) -> None:
        for after, through in ((3, 15), (0, 1), (10, 21), (5, 5)):
            reader = bench.other.reader(bench.log, rows[after], rows[through])
            found = await backwards(reader, 2)
            assert found == sorted(set(found), reverse=True)
            wanted = rows[after + 1 : through + 1]
            assert set(wanted) <= set(found)

    async def test_a_reader_goes_on_when_the_log_grew(
        self, bench: Bench, rows: list[RowId], hold: Hold
    ) -> None:
        reader = bench.other.reader(bench.log, rows[-1])
        assert await reader.next(ALL) == []
        assert reader.ended
        more = [row for _ in range(6) for row in await bench.publish(hold)]
        reader.go_on()
        found = [row[0] for _ in range(9) for row in rows_of(await reader.next(ALL))]
        assert found == more

    async def test_what_was_rolled_back_comes_with_every_limit(
        self, bench: Bench, rows: list[RowId], hold: Hold
    ) -> None:
        await hold.rollback(1, rows[1], rows[2])
        for bytes_max in (1, 150, 300, ALL):
            found = [row[0] for row in await bench.rows(bytes_max=bytes_max) if row[3]]
            assert found == rows[1:3]


class RollbackContract(LogSuite):
    """Transactions that are rolled back."""

    async def test_a_transactions_messages_in_a_range_are_hidden(
        self, bench: Bench, hold: Hold
    ) -> None:
        mine = await bench.publish(hold, 4, Shared(pointer=7))
        await bench.publish(hold, 2, Shared(pointer=8))
        await bench.publish(hold, 2)
        await hold.rollback(7, mine[1], mine[2])
        assert await bench.hidden() == mine[1:3]
        await hold.rollback(7, mine[2], mine[3])
        assert await bench.hidden() == mine[1:4]
        await hold.rollback(7, mine[0], mine[3])
        assert await bench.hidden() == mine

    async def test_over_pages(self, bench: Bench, hold: Hold) -> None:
        mine: list[RowId] = []
        for _ in range(8):
            mine += await bench.publish(hold, 2, Shared(pointer=7))
            await bench.publish(hold, 1, Shared(pointer=9))
        await hold.rollback(7, mine[0], mine[-1])
        assert await bench.hidden() == mine
        second = await bench.claim(bench.other, "other")
        await second.rollback(9, ROW_ID_MIN, ROW_ID_MAX)
        assert len(await bench.hidden()) == 24

    async def test_one_that_finds_nothing_changes_the_own_head(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 2, Shared(pointer=7))
        before = hold.head
        await hold.rollback(8, rows[0], rows[-1])
        assert await bench.hidden() == []
        assert hold.head.edits == before.edits + 1
        await hold.rollback(7, row_after(rows[-1]), ROW_ID_MAX)
        assert hold.head.edits == before.edits + 2

    async def test_one_that_finds_nothing_tells_a_fenced_holder_so(
        self, bench: Bench, hold: Hold
    ) -> None:
        await bench.publish(hold)
        second = await bench.claim(bench.other, "other")
        rows = await bench.publish(second, 1, Shared(pointer=7))
        with pytest.raises(BrokerError):
            await hold.rollback(7, rows[0], rows[0])
        assert hold.done

    async def test_again_is_as_once(self, bench: Bench, hold: Hold) -> None:
        rows = await bench.publish(hold, 3, Shared(pointer=7))
        for _ in range(3):
            await hold.rollback(7, rows[0], rows[1])
        assert await bench.hidden() == rows[:2]

    async def test_two_at_once_on_one_sealed_page_both_count(
        self, bench: Bench, hold: Hold
    ) -> None:
        mine = await bench.publish(hold, 6, Shared(pointer=7))
        for _ in range(4):
            await bench.publish(hold)
        await asyncio.gather(
            *(hold.rollback(7, mine[place], mine[place]) for place in (0, 2, 3, 5))
        )
        assert await bench.hidden() == [mine[0], mine[2], mine[3], mine[5]]

    async def test_while_publishing_goes_on(self, bench: Bench, hold: Hold) -> None:
        mine: list[RowId] = []
        for _ in range(6):
            mine += await bench.publish(hold, 1, Shared(pointer=7))

        async def publishes() -> list[RowId]:
            return [row for _ in range(10) for row in await bench.publish(hold)]

        more, _ = await asyncio.gather(publishes(), hold.rollback(7, mine[0], mine[-1]))
        assert await bench.read() == mine + more
        assert await bench.hidden() == mine

    async def test_below_the_floor_nothing_is_left_to_roll_back(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 2, Shared(pointer=7))
        await sweeping.raise_floor(hold, row_after(rows[-1]))
        assert hold.root.floor == hold.page
        await hold.rollback(7, rows[0], rows[-1])
        assert await bench.read() == []


class MarkContract(LogSuite):
    """What entries carry for later requests."""

    async def test_a_mark_is_found_before_and_after_its_row_is_put(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 2, key=KEY)
        mark = Mark(1, KEY, rows[0], rows[-1], BODY)
        assert await hold.marks.find(1, KEY) == [mark]
        assert hold.head.marked < rows[0]
        await hold.marks.flush()
        assert await hold.marks.find(1, KEY) == [mark]
        assert await hold.marks.find(2, KEY) == []
        assert await hold.marks.find(1, b"x" * 16) == []
        later = await bench.publish(hold)
        assert hold.head.marked == later[-1]

    async def test_a_claim_puts_what_was_not_put(self, bench: Bench, hold: Hold) -> None:
        rows = [row for n in range(7) for row in await bench.publish(hold, key=b"%016d" % n)]
        second = await bench.claim(bench.other, "other")
        assert second.head.marked < rows[0]
        for number, row in enumerate(rows):
            assert [m.first for m in await second.marks.find(1, b"%016d" % number)] == [row]
        await second.marks.flush()
        last = await bench.publish(second)
        assert second.head.marked == last[-1]
        third = await bench.claim()
        for number, row in enumerate(rows):
            assert [m.first for m in await third.marks.find(1, b"%016d" % number)] == [row]

    async def test_all_marks_of_a_key_are_found_the_oldest_first(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, key=KEY)
        await hold.marks.flush()
        rows += await bench.publish(hold, key=KEY)
        rows += await bench.publish(hold, key=KEY)
        assert [mark.first for mark in await hold.marks.find(1, KEY)] == rows

    async def test_the_floor_waits_for_the_marks_below_it(self, bench: Bench, hold: Hold) -> None:
        rows = [row for n in range(5) for row in await bench.publish(hold, key=b"%016d" % n)]
        await sweeping.raise_floor(hold, row_after(rows[-1]))
        await bench.clear(hold)
        second = await bench.claim(bench.other, "other")
        for number, row in enumerate(rows):
            assert [m.first for m in await second.marks.find(1, b"%016d" % number)] == [row]

    async def test_marks_go_with_their_window_and_not_above_marked(
        self, bench: Bench, hold: Hold
    ) -> None:
        from broker.storage.marks import sweep_marks  # noqa: PLC0415 - Only here.

        rows = [row for n in range(6) for row in await bench.publish(hold, key=b"%016d" % n)]
        await hold.marks.flush()
        after: bytes | None = b""
        went = 0
        while after is not None:
            some, after = await sweep_marks(
                bench.one.resolver, bench.log, rows[3], rows[5], after, 2
            )
            went += some
        assert went == 4
        left = [bool(await hold.marks.find(1, b"%016d" % number)) for number in range(6)]
        assert left == [False] * 4 + [True] * 2

    async def test_marks_of_a_payload_log_are_its_own(self, bench: Bench, hold: Hold) -> None:
        payloads = PayloadLogs(bench.one, "one")
        part = await payloads.open(hold, 12)
        rows = await bench.publish(part, 1, Shared(is_stored=True), key=KEY)
        assert [mark.first for mark in await part.marks.find(1, KEY)] == rows
        assert await hold.marks.find(1, KEY) == []
        again = await payloads.open(hold, 12)
        assert [mark.first for mark in await again.marks.find(1, KEY)] == rows


class FloorContract(LogSuite):
    """The floor, what is removed below it, and lifetimes."""

    @pytest.fixture
    async def ten(self, bench: Bench, hold: Hold) -> list[RowId]:
        """Give ten messages in three pages."""
        rows = [row for _ in range(10) for row in await bench.publish(hold)]
        await hold.settled()
        return rows

    async def test_the_floor_is_the_page_of_the_bound(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        await sweeping.raise_floor(hold, rows[2])
        assert hold.root.floor == ROW_ID_MIN
        await sweeping.raise_floor(hold, rows[6])
        assert hold.root.floor == row_after(rows[3])
        assert await bench.read() == rows[4:]
        reader = bench.other.reader(bench.log, ROW_ID_MIN)
        assert await backwards(reader, 2) == rows[4:][::-1]
        await sweeping.raise_floor(hold, rows[1])
        await hold.raise_floor(row_after(rows[3]))
        assert hold.root.floor == row_after(rows[3])

    async def test_clearing_removes_pages_in_slices(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        assert await bench.clear(hold) == 0
        await sweeping.raise_floor(hold, rows[-1])
        assert await bench.clear(hold, 1) == 8
        assert hold.root.gone == hold.root.floor
        assert await bench.read() == rows[8:]
        assert await bench.clear(hold) == 0
        second = await bench.claim(bench.other, "other")
        rows += await bench.publish(second)
        assert await bench.read() == rows[8:]

    async def test_a_tail_that_expired_is_sealed_first(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        await sweeping.raise_floor(hold, row_after(rows[-1]))
        assert hold.root.floor == hold.page == row_after(rows[-1])
        assert await bench.clear(hold) == 10
        assert await bench.read() == []
        page = hold.page
        await sweeping.raise_floor(hold, row_id(1 << 40, 0))
        assert hold.page == page
        second = await bench.claim(bench.other, "other")
        more = await bench.publish(second, 2)
        assert second.head.total == 12
        assert await bench.read() == more

    async def test_what_is_published_meanwhile_stays_above_the_floor(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        bound = row_after(rows[-1])
        more: list[RowId] = []

        async def publishes() -> None:
            for _ in range(8):
                more.extend(await bench.publish(hold))

        await asyncio.gather(publishes(), sweeping.raise_floor(hold, bound))
        await sweeping.raise_floor(hold, bound)
        await bench.clear(hold)
        found = await bench.read()
        assert found[-8:] == more

    async def test_two_floors_at_once_never_go_down(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        await bench.publish(hold, key=KEY)
        await asyncio.gather(
            hold.raise_floor(row_after(rows[7])), hold.raise_floor(row_after(rows[3]))
        )
        assert hold.root.floor == row_after(rows[7])

    async def test_what_was_gone_is_not_made_again(
        self, bench: Bench, hold: Hold, ten: list[RowId]
    ) -> None:
        rows = ten
        await sweeping.raise_floor(hold, rows[-1])
        await bench.clear(hold)
        reader = bench.other.reader(bench.log, ROW_ID_MIN)
        assert [row for e in await reader.next(ALL) for row in e.ids()] == rows[8:]
        head, turned = await sweeping.turn_gone(bench.one.resolver, bench.log, ROW_ID_MIN)
        assert head is not None
        assert (head.state, turned) == (PageState.GONE, False)

    async def test_entries_whose_life_ended_become_stubs(self, bench: Bench, hold: Hold) -> None:
        kept = await bench.publish(hold, 2)
        gone: list[RowId] = []
        for _ in range(6):
            gone += await bench.publish(hold, 1, Shared(lifetime_ms=50), key=KEY)
        late = await bench.publish(hold, 1, Shared(lifetime_ms=1 << 40))
        assert await bench.read() == kept + gone + late
        known = sweeping.Ends(1)
        await sweeping.look_for_ends(bench.one.resolver, hold, known)
        assert await sweeping.end_lives(hold, known, bench.ms) == 0
        assert await sweeping.end_lives(hold, known, bench.ms + 100) == 2
        assert await bench.read() == kept + late
        assert hold.head.first_end_ms > bench.ms + 100
        assert await sweeping.end_lives(hold, known, bench.ms + 100) == 0
        second = await bench.claim(bench.other, "other")
        assert [m.first for m in await second.marks.find(1, KEY)] == gone
        assert second.head.total == 9

    async def test_ending_lives_keeps_what_was_rolled_back(self, bench: Bench, hold: Hold) -> None:
        mine = await bench.publish(hold, 2, Shared(pointer=7))
        await bench.publish(hold, 1, Shared(pointer=7, lifetime_ms=1))
        await hold.rollback(7, mine[0], mine[0])
        assert await hold.end_lives(hold.page, bench.ms + 100) == NO_END
        assert await bench.hidden() == mine[:1]
        assert await bench.read() == mine


class GenerationContract(LogSuite):
    """Deleting and creating again."""

    async def test_deleting_closes_the_log(self, bench: Bench, hold: Hold) -> None:
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

    async def test_a_begun_deletion_is_finished_by_a_claim(self, bench: Bench, hold: Hold) -> None:
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

    async def test_a_tail_that_is_to_be_made_is_made_closed(self, bench: Bench, hold: Hold) -> None:
        hold._roll = _dies  # type: ignore[method-assign]
        for _ in range(4):
            await bench.publish(hold)
        root = await bench.one.root(bench.log)
        closed = await bench.one.close_tail(bench.log, root, "one")
        assert closed is not None
        assert (closed.state, closed.epoch, closed.total) == (PageState.CLOSED, 2, 4)
        assert len(await bench.read()) == 4

    async def test_the_next_generation_begins_above_and_empty(
        self, bench: Bench, hold: Hold
    ) -> None:
        rows = await bench.publish(hold, 3, Shared(pointer=3), key=KEY)
        await bench.one.delete(bench.log, "one")
        bench.generation = 2
        again = await bench.claim(bench.other, "other")
        assert again.epoch == 3
        assert (again.page, again.pointer) == (row_after(rows[-1]), rows[-1])
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
        rows = await bench.publish(hold)
        assert await bench.read() == rows

    async def test_clearing_a_dead_generation_leaves_the_living(self, bench: Bench) -> None:
        rows: list[RowId] = []
        for generation in (1, 2, 3):
            bench.generation = generation
            hold = await bench.claim()
            rows = [row for _ in range(9) for row in await bench.publish(hold)]
            if generation < 3:
                await bench.one.delete(bench.log, "one")
        went = 0
        for generation in (1, 2, 3, 4):
            after: RowId | None = ROW_ID_MIN
            while after is not None:
                some, after = await sweeping.clear_generation(
                    bench.one.resolver, bench.topic, generation, after, 2
                )
                went += some
        assert went == 18
        assert await bench.read() == rows
        head, turned = await sweeping.turn_gone(
            bench.one.resolver, LogId(bench.topic, 1), ROW_ID_MIN
        )
        assert head is not None
        assert not turned


class PayloadContract(LogSuite):
    """Payload logs: storing, publishing, dropping."""

    @pytest.fixture
    def payloads(self, bench: Bench) -> PayloadLogs:
        """Give the payload logs as the first node leads them."""
        return PayloadLogs(bench.one, "one")

    async def test_what_was_stored_is_read_after_it_was_sealed(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
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
            (row, payload_of(row)) for row in stored
        ]
        reader = bench.other.reader(part.log, ROW_ID_MIN)
        while not reader.ended:
            assert not reader.is_closed
            await reader.next(1)
        assert reader.is_closed
        with pytest.raises(Fenced):
            await bench.publish(part, 1, Shared(is_stored=True))
        with pytest.raises(LogClosed) as closed:
            await payloads.open(hold, -7)
        assert closed.value.root.state is RootState.SEALED

    async def test_sealing_again_tells_what_is(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
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
        self, hold: Hold, payloads: PayloadLogs
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

    async def test_a_log_that_was_closed_and_not_sealed_takes_nothing(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
    ) -> None:
        part = await payloads.open(hold, 7)
        await bench.one.close_tail(part.log, part.root, "one", hold.epoch)
        with pytest.raises(LogClosed):
            await payloads.open(hold, 7)
        assert (await payloads.seal(hold, 7)).was_open

    async def test_a_leader_of_before_can_neither_open_store_nor_seal(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
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

    async def test_opening_again_goes_on_behind_what_was_stored(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
    ) -> None:
        first = await payloads.open(hold, 7)
        rows = await bench.publish(first, 3, Shared(is_stored=True))
        again = await payloads.open(hold, 7)
        assert (again.pointer, again.epoch) == (rows[-1], first.epoch)
        # The head is another's, of the same epoch: what became of the change stays open.
        storing = asyncio.ensure_future(bench.publish(first, 1, Shared(is_stored=True)))
        while not first._turn.locked():  # noqa: ASYNC110 - The storing is to be under way.
            await asyncio.sleep(0)
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        assert first.done
        rows += await bench.publish(again, 1, Shared(is_stored=True))
        assert await bench.read(again.log) == rows

    async def test_logs_are_listed_with_their_roots(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
    ) -> None:
        for number in (3, 5, 9):
            await payloads.open(hold, number)
        found = await payloads.roots(bench.topic, 1, 8)
        assert [log.number for log, _ in found] == [3, 5]
        assert [log.number for log, _ in await payloads.roots(bench.topic, 1, 9, after=3)] == [5, 9]

    async def test_dropped_then_emptied_then_forgotten(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
    ) -> None:
        part = await payloads.open(hold, 7)
        kept = await payloads.open(hold, 8)
        for _ in range(6):
            await bench.publish(part, 2, Shared(is_stored=True))
        rows = await bench.publish(kept, 1, Shared(is_stored=True))
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
        assert await bench.read(kept.log) == rows

    async def test_logs_of_dead_generations_are_listed(
        self, bench: Bench, hold: Hold, payloads: PayloadLogs
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
        assert found == (b"", second)

    async def test_one_that_changed_back_is_another(self, bench: Bench) -> None:
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


class LogContract(
    ClaimContract,
    AppendContract,
    RollContract,
    ReadContract,
    RollbackContract,
    MarkContract,
    FloorContract,
    GenerationContract,
    PayloadContract,
    RecordContract,
):
    """All of it: subclass this with a ``harness`` fixture."""


__all__ = ["LogContract"]

"""The contract of the log protocol: rolling back, marks, the floor, lifetimes. See log.py."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import BrokerError
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, log_key, log_key_after
from broker.storage import sweep
from broker.storage.entry import Mark, Shared
from broker.storage.head import NO_END, PageState
from broker.storage.hold import LogHold
from broker.storage.marks import MarksBefore, sweep_marks
from broker.storage.payloads import PayloadLogs
from tests.kit.contract.log_bench import (
    BODY,
    KEY,
    Bench,
    LogSuite,
    backwards,
)


class RollbackContract(LogSuite):
    """Transactions that are rolled back."""

    async def test_a_transactions_messages_in_a_range_are_hidden(
        self, bench: Bench, hold: LogHold
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

    async def test_a_rollback_covers_several_pages(self, bench: Bench, hold: LogHold) -> None:
        mine: list[LogKey] = []
        for _ in range(8):
            mine += await bench.publish(hold, 2, Shared(pointer=7))
            await bench.publish(hold, 1, Shared(pointer=9))
        await hold.rollback(7, mine[0], mine[-1])
        assert await bench.hidden() == mine
        second = await bench.claim(bench.other, "other")
        await second.rollback(9, LOG_KEY_MIN, LOG_KEY_MAX)
        assert len(await bench.hidden()) == 24

    async def test_a_rollback_without_messages_changes_the_holders_head(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = await bench.publish(hold, 2, Shared(pointer=7))
        before = hold.head
        await hold.rollback(8, ids[0], ids[-1])
        assert await bench.hidden() == []
        assert hold.head.edits == before.edits + 1
        await hold.rollback(7, log_key_after(ids[-1]), LOG_KEY_MAX)
        assert hold.head.edits == before.edits + 2

    async def test_a_rollback_without_messages_fails_for_a_fenced_holder(
        self, bench: Bench, hold: LogHold
    ) -> None:
        await bench.publish(hold)
        second = await bench.claim(bench.other, "other")
        ids = await bench.publish(second, 1, Shared(pointer=7))
        with pytest.raises(BrokerError):
            await hold.rollback(7, ids[0], ids[0])
        assert hold.done

    async def test_a_repeated_rollback_has_the_effect_of_one(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = await bench.publish(hold, 3, Shared(pointer=7))
        for _ in range(3):
            await hold.rollback(7, ids[0], ids[1])
        assert await bench.hidden() == ids[:2]

    async def test_concurrent_rollbacks_on_one_sealed_page_all_count(
        self, bench: Bench, hold: LogHold
    ) -> None:
        mine = await bench.publish(hold, 6, Shared(pointer=7))
        for _ in range(4):
            await bench.publish(hold)
        await asyncio.gather(
            *(hold.rollback(7, mine[place], mine[place]) for place in (0, 2, 3, 5))
        )
        assert await bench.hidden() == [mine[0], mine[2], mine[3], mine[5]]

    async def test_a_rollback_runs_beside_publishes(self, bench: Bench, hold: LogHold) -> None:
        mine: list[LogKey] = []
        for _ in range(6):
            mine += await bench.publish(hold, 1, Shared(pointer=7))

        async def publishes() -> list[LogKey]:
            return [key for _ in range(10) for key in await bench.publish(hold)]

        more, _ = await asyncio.gather(publishes(), hold.rollback(7, mine[0], mine[-1]))
        assert await bench.read() == mine + more
        assert await bench.hidden() == mine

    async def test_a_rollback_below_the_floor_is_a_no_op(self, bench: Bench, hold: LogHold) -> None:
        ids = await bench.publish(hold, 2, Shared(pointer=7))
        await sweep.raise_floor(hold, log_key_after(ids[-1]))
        assert hold.root.floor == hold.page
        await hold.rollback(7, ids[0], ids[-1])
        assert await bench.read() == []


class MarkContract(LogSuite):
    """Marks, which entries carry for later requests."""

    async def test_a_mark_is_found_before_and_after_its_row_is_put(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = await bench.publish(hold, 2, key=KEY)
        mark = Mark(1, KEY, ids[0], ids[-1], BODY)
        assert await hold.marks.find(1, KEY) == [mark]
        assert hold.head.marked < ids[0]
        await hold.marks.flush()
        assert await hold.marks.find(1, KEY) == [mark]
        assert await hold.marks.find(2, KEY) == []
        assert await hold.marks.find(1, b"x" * 16) == []
        later = await bench.publish(hold)
        assert hold.head.marked == later[-1]

    async def test_a_claim_puts_the_marks_that_were_not_put(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = [key for n in range(7) for key in await bench.publish(hold, key=b"%016d" % n)]
        second = await bench.claim(bench.other, "other")
        assert second.head.marked < ids[0]
        for number, key in enumerate(ids):
            assert [m.first for m in await second.marks.find(1, b"%016d" % number)] == [key]
        await second.marks.flush()
        last = await bench.publish(second)
        assert second.head.marked == last[-1]
        third = await bench.claim()
        for number, key in enumerate(ids):
            assert [m.first for m in await third.marks.find(1, b"%016d" % number)] == [key]

    async def test_all_marks_of_a_key_are_found_the_oldest_first(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = await bench.publish(hold, key=KEY)
        await hold.marks.flush()
        ids += await bench.publish(hold, key=KEY)
        ids += await bench.publish(hold, key=KEY)
        assert [mark.first for mark in await hold.marks.find(1, KEY)] == ids

    async def test_the_floor_waits_for_the_marks_below_it(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = [key for n in range(5) for key in await bench.publish(hold, key=b"%016d" % n)]
        await sweep.raise_floor(hold, log_key_after(ids[-1]))
        await bench.clear(hold)
        second = await bench.claim(bench.other, "other")
        for number, key in enumerate(ids):
            assert [m.first for m in await second.marks.find(1, b"%016d" % number)] == [key]

    async def test_marks_are_swept_after_their_window_and_not_above_marked(
        self, bench: Bench, hold: LogHold
    ) -> None:
        ids = [key for n in range(6) for key in await bench.publish(hold, key=b"%016d" % n)]
        await hold.marks.flush()
        after: bytes | None = b""
        went = 0
        while after is not None:
            some, after = await sweep_marks(
                bench.one.resolver, bench.log, ids[3], MarksBefore(ids[5], ids[5]), after, 2
            )
            went += some
        assert went == 4
        left = [bool(await hold.marks.find(1, b"%016d" % number)) for number in range(6)]
        assert left == [False] * 4 + [True] * 2

    async def test_marks_of_a_payload_log_are_its_own(self, bench: Bench, hold: LogHold) -> None:
        payloads = PayloadLogs(bench.one, "one")
        part = await payloads.open(hold, 12)
        ids = await bench.publish(part, 1, Shared(is_stored=True), key=KEY)
        assert [mark.first for mark in await part.marks.find(1, KEY)] == ids
        assert await hold.marks.find(1, KEY) == []
        again = await payloads.open(hold, 12)
        assert [mark.first for mark in await again.marks.find(1, KEY)] == ids


class FloorContract(LogSuite):
    """The floor, the removal of pages below it, and lifetimes."""

    @pytest.fixture
    async def ten(self, bench: Bench, hold: LogHold) -> list[LogKey]:
        """Give ten messages in three pages."""
        ids = [key for _ in range(10) for key in await bench.publish(hold)]
        await hold.settled()
        return ids

    async def test_the_floor_is_the_start_of_the_page_with_the_bound(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        await sweep.raise_floor(hold, ids[2])
        assert hold.root.floor == LOG_KEY_MIN
        await sweep.raise_floor(hold, ids[6])
        assert hold.root.floor == log_key_after(ids[3])
        assert await bench.read() == ids[4:]
        reader = bench.other.reader(bench.log, LOG_KEY_MIN)
        assert await backwards(reader, 2) == ids[4:][::-1]
        await sweep.raise_floor(hold, ids[1])
        await hold.raise_floor(log_key_after(ids[3]))
        assert hold.root.floor == log_key_after(ids[3])

    async def test_clearing_removes_pages_in_slices(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        assert await bench.clear(hold) == 0
        await sweep.raise_floor(hold, ids[-1])
        assert await bench.clear(hold, 1) == 8
        assert hold.root.gone == hold.root.floor
        assert await bench.read() == ids[8:]
        assert await bench.clear(hold) == 0
        second = await bench.claim(bench.other, "other")
        ids += await bench.publish(second)
        assert await bench.read() == ids[8:]

    async def test_a_tail_that_expired_is_sealed_first(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        await sweep.raise_floor(hold, log_key_after(ids[-1]))
        assert hold.root.floor == hold.page == log_key_after(ids[-1])
        assert await bench.clear(hold) == 10
        assert await bench.read() == []
        page = hold.page
        await sweep.raise_floor(hold, log_key(1 << 40, 0))
        assert hold.page == page
        second = await bench.claim(bench.other, "other")
        more = await bench.publish(second, 2)
        assert second.head.total == 12
        assert await bench.read() == more

    async def test_messages_published_meanwhile_stay_above_the_floor(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        bound = log_key_after(ids[-1])
        more: list[LogKey] = []

        async def publishes() -> None:
            for _ in range(8):
                more.extend(await bench.publish(hold))

        await asyncio.gather(publishes(), sweep.raise_floor(hold, bound))
        await sweep.raise_floor(hold, bound)
        await bench.clear(hold)
        found = await bench.read()
        assert found[-8:] == more

    async def test_concurrent_changes_never_lower_the_floor(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        await bench.publish(hold, key=KEY)
        await asyncio.gather(
            hold.raise_floor(log_key_after(ids[7])), hold.raise_floor(log_key_after(ids[3]))
        )
        assert hold.root.floor == log_key_after(ids[7])

    async def test_a_removed_page_is_not_made_again(
        self, bench: Bench, hold: LogHold, ten: list[LogKey]
    ) -> None:
        ids = ten
        await sweep.raise_floor(hold, ids[-1])
        await bench.clear(hold)
        assert await bench.read() == ids[8:]
        head, turned = await sweep.turn_gone(bench.one.resolver, bench.log, LOG_KEY_MIN)
        assert head is not None
        assert (head.state, turned) == (PageState.GONE, False)

    async def test_entries_whose_life_ended_become_stubs(self, bench: Bench, hold: LogHold) -> None:
        kept = await bench.publish(hold, 2)
        gone: list[LogKey] = []
        for _ in range(6):
            gone += await bench.publish(hold, 1, Shared(lifetime_ms=50), key=KEY)
        late = await bench.publish(hold, 1, Shared(lifetime_ms=1 << 40))
        assert await bench.read() == kept + gone + late
        known = sweep.LifetimeEnds(1)
        await sweep.look_for_ends(hold, known)
        assert await sweep.end_lives(hold, known, bench.ms) == 0
        assert await sweep.end_lives(hold, known, bench.ms + 100) == 2
        assert await bench.read() == kept + late
        assert hold.head.first_end_ms > bench.ms + 100
        assert await sweep.end_lives(hold, known, bench.ms + 100) == 0
        second = await bench.claim(bench.other, "other")
        assert [m.first for m in await second.marks.find(1, KEY)] == gone
        assert second.head.total == 9

    async def test_ending_lives_keeps_rolled_back_messages(
        self, bench: Bench, hold: LogHold
    ) -> None:
        mine = await bench.publish(hold, 2, Shared(pointer=7))
        await bench.publish(hold, 1, Shared(pointer=7, lifetime_ms=1))
        await hold.rollback(7, mine[0], mine[0])
        assert await hold.end_lives(hold.page, bench.ms + 100) == NO_END
        assert await bench.hidden() == mine[:1]
        assert await bench.read() == mine

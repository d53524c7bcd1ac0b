"""Clauses that random runs meet too rarely, each shown by a story and by its mutant."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import BrokerError, Fenced, OutcomeUnknown, Unavailable
from broker.model import ROW_ID_MAX, ROW_ID_MIN, TopicId, row_after
from broker.storage import entry as entries
from broker.storage import sweep
from broker.storage.entry import PLAIN, Shared
from broker.storage.hold import LogHold
from broker.storage.keys import page_key, root_key
from broker.storage.log import Deleted, Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.page_packer import pack
from broker.storage.payloads import PayloadLogs
from broker.storage.root import RootState
from broker.storage.table import HEAD, NotWritten, WriteUnknown
from broker.testing import mutants
from tests.kit.bench import settle
from tests.kit.contract.log_bench import SMALL, Bench

Meanwhile = Callable[[], Awaitable[None]]


class StoryTable(MemoryTable):
    """A table at which something happens before or after one change that a test waits for."""

    def __init__(self) -> None:
        super().__init__(is_alone=False)
        self.stories: list[tuple[str, Callable[[bytes, dict], bool], Meanwhile]] = []

    def on(self, when: str, is_it: Callable[[bytes, dict], bool], story: Meanwhile) -> None:
        """Tell ``story`` ``when`` ("before", "after", "instead of") the next change that ``is_it``."""
        self.stories.append((when, is_it, story))

    @override
    async def change(self, space, row, expected, puts, deletes=(), *, clear=False):
        story = next((each for each in self.stories if each[1](row, puts)), None)
        if story is None:
            return await super().change(space, row, expected, puts, deletes, clear=clear)
        self.stories.remove(story)
        when, _, happens = story
        if when != "after":
            await happens()
        done = when != "instead of" and await super().change(
            space, row, expected, puts, deletes, clear=clear
        )
        if when == "after":
            await happens()
        return done


@pytest.fixture
def bench() -> Bench:
    table = StoryTable()
    one, other = (Logs(table, SystemClock(), bounds=SMALL, call_s=0.3) for _ in "12")
    return Bench(table, TopicId("ns", "t"), one, other)


def has_entries(_: bytes, puts: dict) -> bool:
    return any(column != HEAD for column in puts)


async def no_answer() -> None:
    raise WriteUnknown("lost")


async def not_sent() -> None:
    raise NotWritten("refused")


# A page that is gone says nothing of what was in it.


async def outcome_of_an_append_to_a_page_that_goes(bench: Bench) -> BrokerError:
    hold = await bench.claim()
    await bench.publish(hold)

    async def meanwhile() -> None:
        second = await bench.claim(bench.other, "other")
        await sweep.raise_floor(second, row_after(second.pointer))
        await bench.clear(second)
        raise WriteUnknown("lost")

    bench.table.on("after", has_entries, meanwhile)
    with pytest.raises(BrokerError) as raised:
        await bench.publish(hold)
    return raised.value


async def test_an_append_to_a_page_that_is_gone_is_unknown(bench):
    assert isinstance(await outcome_of_an_append_to_a_page_that_goes(bench), OutcomeUnknown)


async def test_gone_is_unknown_is_needed(bench):
    with mutants.in_force("gone-is-unknown"):
        assert isinstance(await outcome_of_an_append_to_a_page_that_goes(bench), Fenced)


# A page that was packed has no cell of an entry that was joined with others.


async def outcome_of_an_append_to_a_page_that_is_packed(bench: Bench) -> BrokerError:
    hold = await bench.claim()
    await bench.publish(hold)

    async def meanwhile() -> None:
        second = await bench.claim(bench.other, "other")
        for _ in range(SMALL.cells_max):
            await bench.publish(second)
        resolver = bench.other.resolver
        assert await pack(resolver, resolver.tokens(), bench.log, ROW_ID_MIN)
        raise WriteUnknown("lost")

    bench.table.on("after", has_entries, meanwhile)
    with pytest.raises(BrokerError) as raised:
        await bench.publish(hold)
    return raised.value


async def test_an_append_to_a_page_that_was_packed_is_unknown(bench):
    assert isinstance(await outcome_of_an_append_to_a_page_that_is_packed(bench), OutcomeUnknown)


async def test_packed_is_unknown_is_needed(bench):
    with mutants.in_force("packed-is-unknown"):
        assert isinstance(await outcome_of_an_append_to_a_page_that_is_packed(bench), Fenced)


# A root that could be changed is the root as it is now.


async def floors_after_a_claim(bench: Bench) -> tuple[bytes, bytes]:
    """Return the floor as a new holder believes it, and as it is."""
    hold = await bench.claim()
    for _ in range(6):
        await bench.publish(hold)
    page = hold.page

    async def meanwhile() -> None:
        await hold.raise_floor(page)

    bench.table.on("before", lambda row, _: row.endswith(page), meanwhile)
    second = await bench.claim(bench.other, "other")
    stored = await bench.one.root(bench.log)
    return second.root.floor, stored.floor


async def test_a_claim_knows_the_floor_as_it_is(bench):
    believed, stored = await floors_after_a_claim(bench)
    assert believed == stored > ROW_ID_MIN


@pytest.mark.parametrize("name", ["own-after-link", "link-every-claim"])
async def test_the_link_of_every_claim_is_needed(bench, name):
    with mutants.in_force(name):
        believed, stored = await floors_after_a_claim(bench)
    assert believed < stored


# What a hostile reading found.


async def test_what_was_perhaps_sent_is_not_told_as_not_done(bench):
    hold = await bench.claim()
    bench.table.on("after", has_entries, no_answer)

    async def busy() -> None:
        raise Unavailable("busy")

    held = bench.table.get

    async def unreadable(*_args):
        bench.table.get = held
        raise Unavailable("busy")

    bench.table.get = unreadable
    await bench.publish(hold)
    bench.table.on("instead of", has_entries, no_answer)
    bench.table.on("instead of", has_entries, busy)
    rows = await bench.publish(hold)
    assert (await bench.read())[-1:] == rows


async def test_what_was_certainly_not_sent_lets_the_hold_go_on(bench):
    hold = await bench.claim()
    bench.table.on("instead of", has_entries, not_sent)
    with pytest.raises(Unavailable):
        await bench.publish(hold)
    rows = await bench.publish(hold)
    assert await bench.read() == rows


async def test_a_page_that_was_sealed_and_not_rolled_ends_the_hold(bench):
    hold = await bench.claim()
    await bench.publish(hold)
    bench.table.on("instead of", lambda row, _: row.endswith(hold.head.next), not_sent)
    with pytest.raises(Fenced):
        await hold.roll_expired(ROW_ID_MAX)
    with pytest.raises(Fenced):
        await bench.publish(hold)
    second = await bench.claim(bench.other, "other")
    assert second.page == row_after(hold.pointer)


async def test_two_rollbacks_of_a_sealed_page_don_t_lose_each_other(bench):
    hold = await bench.claim()
    mine = await bench.publish(hold, 6, Shared(pointer=7))
    for _ in range(4):
        await bench.publish(hold)
    await hold.settled()

    async def meanwhile() -> None:
        await hold.rollback(7, mine[0], mine[1])

    bench.table.on("before", has_entries, meanwhile)
    await hold.rollback(7, mine[4], mine[5])
    assert await bench.hidden() == [*mine[:2], *mine[4:]]


@pytest.mark.slow
async def test_two_holds_of_one_epoch_don_t_take_each_others_entry_for_theirs(bench):
    topic = await bench.claim()
    payloads = PayloadLogs(bench.one, "one")
    first = await payloads.open(topic, 7)
    second = await payloads.open(topic, 7)
    ids = bench.ids(1)
    for hold, payload, expected in ((second, b"second", None), (first, b"first", OutcomeUnknown)):
        added = bench.entries(hold, ids, Shared(is_stored=True), [payload])
        appending = hold.append(added, messages=1, payload_bytes=6)
        if expected is None:
            await appending
        else:
            with pytest.raises(expected):
                await appending
    assert [row[1] for row in await bench.rows(log=second.log)] == [b"second"]


async def test_a_stub_of_my_entry_is_mine(bench):
    hold = await bench.claim()

    async def meanwhile() -> None:
        second = await bench.claim(bench.other, "other")
        assert await second.end_lives(second.page, 1 << 50)
        raise WriteUnknown("lost")

    bench.table.on("after", has_entries, meanwhile)
    await bench.publish(hold, 1, Shared(lifetime_ms=1))
    assert hold.done
    assert hold.head.total == 0
    assert await bench.read() == []


async def test_a_deletion_whose_root_changed_meanwhile_is_finished_all_the_same(bench):
    hold = await bench.claim()
    for _ in range(5):
        await bench.publish(hold)
    await hold.settled()
    await bench.other.close_tail(bench.log, await bench.one.root(bench.log), "other")

    async def meanwhile() -> None:
        # The former leader does not know yet, and its root is the one that is stored.
        await hold.raise_floor(hold.page)

    bench.table.on("before", lambda row, _: row == root_key(bench.log), meanwhile)
    with pytest.raises(Deleted):
        await bench.claim(bench.other, "other")
    assert (await bench.one.root(bench.log)).state is RootState.DELETED
    bench.generation = 2
    assert (await bench.claim()).epoch > hold.epoch


async def test_what_is_published_while_a_tail_expires_stays_above_the_floor(bench):
    hold = await bench.claim()
    await bench.publish(hold)
    bound = row_after(hold.pointer)

    await hold._turn.acquire()
    raising = asyncio.ensure_future(sweep.raise_floor(hold, bound))
    while not hold._turn._waiters:
        await settle(1)
    ids = bench.ids(1)
    added = bench.entries(hold, ids, PLAIN)
    cells = {each.column: entries.encode(each) for each in added}
    await hold._change_page(hold._appended(added, 1, 0), cells, added)
    hold._turn.release()
    await raising
    await bench.clear(hold)
    assert (await bench.read())[-1:] == ids


async def test_a_handoff_of_a_hold_that_is_done_says_so(bench):
    hold = await bench.claim()
    await bench.publish(hold, key=b"k" * 16)
    hold.end()
    assert not await hold.hand_off()


async def test_marks_of_a_hold_that_is_done_are_not_waited_for(bench):
    hold: LogHold = await bench.claim()
    await bench.publish(hold, key=b"k" * 16)
    hold.end()
    with pytest.raises(Fenced):
        await hold.marks.flush()


# A page that is there, or was, is not made again.


async def outcome_of_a_late_make(bench: Bench, *, is_dead: bool) -> str:
    """Let the make of a page be applied once more when it was swept; return what its maker is told."""
    makes: list[tuple] = []
    change = bench.table.change

    async def noting(space, row, expected, puts, deletes=(), *, clear=False):
        if expected is None and row.startswith(page_key(bench.log, b"")):
            makes.append((space, row, expected, dict(puts)))
        return await change(space, row, expected, puts, deletes, clear=clear)

    bench.table.change = noting
    zombie = await bench.claim()
    late = makes[-1]
    bench.table.change = change
    second = await bench.claim(bench.other, "other")
    await bench.publish(second)
    if is_dead:
        await bench.other.delete(bench.log, "other")
        alive = Bench(bench.table, bench.topic, bench.other, bench.other, generation=2)
        await alive.claim(name="other")
        await sweep.clear_generation(bench.other.resolver, bench.topic, 1, ROW_ID_MIN, 100)
    else:
        await sweep.raise_floor(second, row_after(second.pointer))
        await bench.clear(second)
    await change(*late)
    try:
        await bench.publish(zombie)
    except BrokerError as error:
        return type(error).__name__
    return "acknowledged"


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_late_make_of_a_page_that_is_gone_fails(bench, is_dead):
    assert await outcome_of_a_late_make(bench, is_dead=is_dead) == "OutcomeUnknown"


@pytest.mark.parametrize(
    ("name", "is_dead"), [("gone-stays", False), ("dead-generations-stay", True)]
)
async def test_heads_that_stay_are_needed(bench, name, is_dead):
    with mutants.in_force(name):
        assert await outcome_of_a_late_make(bench, is_dead=is_dead) == "acknowledged"

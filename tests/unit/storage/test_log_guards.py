"""Rare cases of the log's rules. Each has a test of the rule, and most have one with its mutant.

Random runs meet these cases too rarely, so each test scripts one order of events.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.errors import BrokerError, Fenced, OutcomeUnknown, Unavailable
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, TopicId, log_key_after
from broker.storage import resolve, sweep
from broker.storage.entry import Shared
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
    """A table in memory that runs a test's function before, after or instead of a chosen change."""

    def __init__(self) -> None:
        super().__init__(is_alone=False)
        self.stories: list[tuple[str, Callable[[bytes, dict], bool], Meanwhile]] = []

    def on(self, when: str, is_it: Callable[[bytes, dict], bool], story: Meanwhile) -> None:
        """Run ``story`` "before", "after" or "instead of" (``when``) the next change that ``is_it``."""
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
    one, other = (Logs(table, SystemClock(), bounds=SMALL) for _ in "12")
    return Bench(table, TopicId("ns", "t"), one, other)


def has_entries(_: bytes, puts: dict) -> bool:
    return any(column != HEAD for column in puts)


async def no_answer() -> None:
    raise WriteUnknown("lost")


async def not_sent() -> None:
    raise NotWritten("refused")


# A page that is gone proves nothing about its former entries.


async def outcome_of_an_append_to_a_page_that_goes(bench: Bench) -> BrokerError:
    hold = await bench.claim()
    await bench.publish(hold)

    async def meanwhile() -> None:
        second = await bench.claim(bench.other, "other")
        await sweep.raise_floor(second, log_key_after(second.pointer))
        await bench.clear(second)
        raise WriteUnknown("lost")

    bench.table.on("after", has_entries, meanwhile)
    with pytest.raises(BrokerError) as raised:
        await bench.publish(hold)
    return raised.value


async def test_an_append_to_a_page_that_is_gone_is_unknown(bench):
    assert isinstance(await outcome_of_an_append_to_a_page_that_goes(bench), OutcomeUnknown)


async def test_without_gone_is_unknown_such_an_append_seems_refused(bench):
    with mutants.in_force("gone-is-unknown"):
        assert isinstance(await outcome_of_an_append_to_a_page_that_goes(bench), Fenced)


# A packed page does not have the cell of an entry that was joined with others.


async def outcome_of_an_append_to_a_page_that_is_packed(bench: Bench) -> BrokerError:
    hold = await bench.claim()
    await bench.publish(hold)

    async def meanwhile() -> None:
        second = await bench.claim(bench.other, "other")
        for _ in range(SMALL.cells_max):
            await bench.publish(second)
        resolver = bench.other.resolver
        assert await pack(resolver, resolver.tokens(), bench.log, LOG_KEY_MIN)
        raise WriteUnknown("lost")

    bench.table.on("after", has_entries, meanwhile)
    with pytest.raises(BrokerError) as raised:
        await bench.publish(hold)
    return raised.value


async def test_an_append_to_a_page_that_was_packed_is_unknown(bench):
    assert isinstance(await outcome_of_an_append_to_a_page_that_is_packed(bench), OutcomeUnknown)


async def test_without_packed_is_unknown_such_an_append_seems_refused(bench):
    with mutants.in_force("packed-is-unknown"):
        assert isinstance(await outcome_of_an_append_to_a_page_that_is_packed(bench), Fenced)


# A successful change of the root proves that the read root is current.


async def floors_after_a_claim(bench: Bench) -> tuple[bytes, bytes]:
    """Return the floor that a new holder knows, and the stored floor."""
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


async def test_a_claim_reads_the_current_floor(bench):
    believed, stored = await floors_after_a_claim(bench)
    assert believed == stored > LOG_KEY_MIN


@pytest.mark.parametrize("name", ["own-after-link", "link-every-claim"])
async def test_without_the_link_of_every_claim_the_floor_is_stale(bench, name):
    with mutants.in_force(name):
        believed, stored = await floors_after_a_claim(bench)
    assert believed < stored


# Cases that a review of the code found.


async def test_a_write_that_was_perhaps_sent_is_not_reported_as_refused(bench):
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
    ids = await bench.publish(hold)
    assert (await bench.read())[-1:] == ids


async def test_after_a_write_that_was_not_sent_the_hold_goes_on(bench):
    hold = await bench.claim()
    bench.table.on("instead of", has_entries, not_sent)
    with pytest.raises(Unavailable):
        await bench.publish(hold)
    ids = await bench.publish(hold)
    assert await bench.read() == ids


async def test_a_failed_roll_after_a_seal_ends_the_hold(bench):
    hold = await bench.claim()
    await bench.publish(hold)
    bench.table.on("instead of", lambda row, _: row.endswith(hold.head.next), not_sent)
    with pytest.raises(Fenced):
        await hold.roll_expired(LOG_KEY_MAX)
    with pytest.raises(Fenced):
        await bench.publish(hold)
    second = await bench.claim(bench.other, "other")
    assert second.page == log_key_after(hold.pointer)


async def test_two_concurrent_rollbacks_of_a_sealed_page_both_count(bench):
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


async def test_a_rollback_passes_over_a_page_that_is_cleared_meanwhile(bench, monkeypatch):
    hold = await bench.claim()
    for _ in range(9):
        await bench.publish(hold, shared=Shared(pointer=7))
    await hold.settled()
    cleared = False
    columns = bench.table.columns

    async def clear_first(*arguments):
        nonlocal cleared
        if not cleared:
            cleared = True
            await sweep.raise_floor(hold, hold.page)
            assert await bench.clear(hold)
        return await columns(*arguments)

    monkeypatch.setattr(bench.table, "columns", clear_first)
    await hold.rollback(7, log_key_after(LOG_KEY_MIN), hold.pointer)
    assert cleared
    assert not hold.done


async def test_a_hold_without_tokens_ends_and_the_next_claim_goes_on(bench, monkeypatch):
    hold = await bench.claim()
    ids = await bench.publish(hold)
    monkeypatch.setattr(resolve, "TOKENS_MAX", 2)
    with pytest.raises(Fenced):
        await bench.publish(hold)
    monkeypatch.undo()
    ids += await bench.publish(await bench.claim())
    assert await bench.read() == ids


@pytest.mark.slow
async def test_a_hold_does_not_take_an_entry_of_its_epoch_for_its_own(bench):
    bench.one.resolver.call_s = 0.3
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


async def test_a_stub_shows_that_the_append_of_its_entry_was_done(bench):
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


async def test_a_deletion_completes_although_the_root_changes_meanwhile(bench):
    hold = await bench.claim()
    for _ in range(5):
        await bench.publish(hold)
    await hold.settled()
    await bench.other.close_tail(bench.log, await bench.one.root(bench.log), "other")

    async def meanwhile() -> None:
        # The former leader does not know of the deletion yet, and its root is still the stored one.
        await hold.raise_floor(hold.page)

    bench.table.on("before", lambda row, _: row == root_key(bench.log), meanwhile)
    with pytest.raises(Deleted):
        await bench.claim(bench.other, "other")
    assert (await bench.one.root(bench.log)).state is RootState.DELETED
    bench.generation = 2
    assert (await bench.claim()).epoch > hold.epoch


async def test_a_message_published_while_the_tail_expires_stays_above_the_floor(bench):
    hold = await bench.claim()
    await bench.publish(hold)
    bound = log_key_after(hold.pointer)
    raising: list[asyncio.Future[None]] = []

    async def meanwhile() -> None:
        raising.append(asyncio.ensure_future(sweep.raise_floor(hold, bound)))
        await settle()

    bench.table.on("before", has_entries, meanwhile)
    ids = await bench.publish(hold)
    await raising[0]
    await bench.clear(hold)
    assert (await bench.read())[-1:] == ids


async def test_the_handoff_of_a_hold_that_is_done_returns_false(bench):
    hold = await bench.claim()
    await bench.publish(hold, key=b"k" * 16)
    hold.end()
    assert not await hold.hand_off()


async def test_flushing_marks_of_a_hold_that_is_done_is_refused(bench):
    hold: LogHold = await bench.claim()
    await bench.publish(hold, key=b"k" * 16)
    hold.end()
    with pytest.raises(Fenced):
        await hold.marks.flush()


# A page that exists, or existed, is not created again.


async def outcome_of_a_late_creation(bench: Bench, *, is_dead: bool) -> str:
    """Repeat the creation of a page after the page was swept; return the outcome of its creator's append."""
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
        await sweep.clear_generation(bench.other.resolver, bench.topic, 1, LOG_KEY_MIN, 100)
    else:
        await sweep.raise_floor(second, log_key_after(second.pointer))
        await bench.clear(second)
    await change(*late)
    try:
        await bench.publish(zombie)
    except BrokerError as error:
        return type(error).__name__
    return "acknowledged"


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_late_creation_of_a_page_that_is_gone_fails(bench, is_dead):
    assert await outcome_of_a_late_creation(bench, is_dead=is_dead) == "OutcomeUnknown"


@pytest.mark.parametrize(
    ("name", "is_dead"), [("gone-stays", False), ("dead-generations-stay", True)]
)
async def test_without_heads_that_stay_a_late_creation_succeeds(bench, name, is_dead):
    with mutants.in_force(name):
        assert await outcome_of_a_late_creation(bench, is_dead=is_dead) == "acknowledged"

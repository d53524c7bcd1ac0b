import random
from bisect import bisect_right

import pytest

from broker.clock import SystemClock
from broker.errors import Unavailable
from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, LogKey, TopicId, log_key
from broker.storage import sweep
from broker.storage.entry import PLAIN, Shared, entries_of
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ordinals import LogCount, Numbering
from broker.storage.ownpage import PageBounds
from broker.storage.reference import encode_count
from tests.kit.bench import HookedTable

LOG = LogId(TopicId("ns", "t"), 1)
PAYLOAD = b"p" * 300
MANY = 1 << 60


class Filled:
    """A log of small pages, with all its ids and how many messages each id stands for."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.table = HookedTable(MemoryTable())
        self.logs = Logs(self.table, SystemClock(), bounds=PageBounds(cells_max=3))
        self.ids: list[LogKey] = []
        self.weights: list[int] = []
        self.gone = 0
        self.ms = 0

    async def begin(self) -> "Filled":
        self.hold: LogHold = await self.logs.claim(LOG, "node")
        return self

    async def grow(self, appends: int) -> None:
        for _ in range(appends):
            self.ms += 1
            kind = self.chance.random()
            weight, count, shared, payload = 1, self.chance.randint(1, 90), PLAIN, PAYLOAD
            if kind < 0.2:
                weight, count = self.chance.randint(2, 50), 1
                shared, payload = Shared(9, number=9), encode_count(weight)
            elif kind < 0.4:
                shared = Shared(lifetime_ms=1000)
            ids = [log_key(self.ms, place) for place in range(count)]
            added = entries_of(self.hold.epoch, ids, [payload] * count, shared)
            size = 0 if weight > 1 else len(PAYLOAD) * count
            await self.hold.append(added, messages=weight * count, payload_bytes=size)
            await self.hold.settled()
            self.ids += ids
            self.weights += [weight] * count

    async def shrink(self) -> None:
        """Raise the floor to a random page, and clear the pages below."""
        await self.shrink_to(self.chance.choice(self.ids))

    async def shrink_to(self, bound: LogKey) -> None:
        await sweep.raise_floor(self.hold, bound)
        while (await sweep.clear_below_floor(self.logs.resolver, self.hold, 2))[1]:
            pass
        self.gone = sum(each < self.hold.root.floor for each in self.ids)

    def count(self, key: LogKey) -> int:
        """Return how many messages were published up to an id, by a full count."""
        return sum(self.weights[: max(bisect_right(self.ids, key), self.gone)])


@pytest.fixture
async def log(drawn_seed: int) -> Filled:
    return await Filled(drawn_seed).begin()


async def test_an_empty_log_counts_no_messages(log: Filled) -> None:
    for numbering in (Numbering(log.logs, LOG), Numbering(log.logs, LOG._replace(generation=2))):
        await numbering.refresh()
        assert (numbering.tail, numbering.all, numbering.size) == (LOG_KEY_MIN, LogCount(), 0)
        assert await numbering.count(LOG_KEY_MAX) == LogCount()
        assert await numbering.seek(LogCount(5, 5)) == LOG_KEY_MIN


async def test_the_number_of_each_id_equals_a_full_count(log: Filled) -> None:
    numbering = Numbering(log.logs, LOG)
    for step in range(6):
        await log.grow(log.chance.randint(0, 12))
        if step in (3, 5):
            await log.shrink()
        await numbering.refresh()
        if not log.ids:
            continue
        assert numbering.tail == max(log.ids[-1], numbering.floor)
        assert numbering.all.messages == sum(log.weights)
        for key in [LOG_KEY_MIN, LOG_KEY_MAX, *log.chance.sample(log.ids, min(40, len(log.ids)))]:
            assert (await numbering.count(key)).messages == log.count(key)
            between = log_key(int.from_bytes(key[:8], "big", signed=True), 500)
            assert (await numbering.count(between)).messages == log.count(between)


async def test_the_only_page_counts_also_after_it_was_swept(log: Filled) -> None:
    numbering = Numbering(log.logs, LOG)
    for _ in range(3):
        await log.grow(1)
        await numbering.refresh()
        await log.shrink_to(log_key(log.ms + 1, 0))
    assert log.gone == len(log.ids), "every message was swept while its page was the only one"
    await log.grow(1)
    await numbering.refresh()
    for key in [LOG_KEY_MIN, numbering.floor, *log.ids]:
        assert (await numbering.count(key)).messages == log.count(key)


@pytest.mark.slow
async def test_the_last_id_up_to_a_number_is_found(log: Filled) -> None:
    await log.grow(40)
    await log.shrink()
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    all_messages = sum(log.weights)
    for most in [0, all_messages, *(log.chance.randrange(all_messages) for _ in range(60))]:
        key = await numbering.seek(LogCount(most, MANY))
        held = [log.count(each) for each in log.ids[log.gone :]]
        fitting = bisect_right(held, most)
        assert key == (log.ids[log.gone + fitting - 1] if fitting else numbering.floor), most


async def test_a_limit_of_bytes_is_kept(log: Filled) -> None:
    await log.grow(30)
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    assert numbering.all.bytes == len(PAYLOAD) * sum(weight == 1 for weight in log.weights)
    for most in (0, 10_000, 100_000, numbering.all.bytes // 2):
        key = await numbering.seek(LogCount(MANY, most))
        there = log.ids[: bisect_right(log.ids, key)]
        size = len(PAYLOAD) * sum(log.weights[place] == 1 for place in range(len(there)))
        assert most * 0.9 - len(PAYLOAD) <= size <= most * 1.1


async def test_a_page_that_can_not_be_read_is_unavailable(log: Filled) -> None:
    await log.grow(12)
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    pages = [page for page, _ in await log.hold.chain(LOG_KEY_MIN, LOG_KEY_MAX)]

    async def nothing(*_: object, **__: object) -> dict[str, object]:
        return {}

    log.table.on("get", *[nothing] * 100)
    with pytest.raises(Unavailable):
        await numbering.count(pages[len(pages) // 2])


async def test_heads_are_read_once_and_entries_only_at_the_edges(log: Filled) -> None:
    await log.grow(60)
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    calls = log.table.calls
    calls.clear()
    await numbering.refresh()
    assert calls == ["get", "get"], "the root and the head of the tail"
    key = log.ids[len(log.ids) // 2]
    await numbering.count(key)
    calls.clear()
    await numbering.count(key)
    assert len(calls) <= 2, "only the entry with the id is read"


async def test_the_next_message_is_found(log: Filled) -> None:
    await log.grow(40)
    await log.shrink()
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    there = log.ids[log.gone :]
    for key in [LOG_KEY_MIN, *log.chance.sample(log.ids, 60)]:
        behind = there[bisect_right(there, key) :]
        assert await numbering.next_id(key) == (behind[0] if behind else numbering.tail)


async def test_the_heads_that_stay_count_the_messages_that_are_gone(log: Filled) -> None:
    await log.grow(40)
    await log.shrink()
    numbering = Numbering(log.logs, LOG)
    await numbering.refresh()
    for place, key in enumerate(log.ids):
        really = sum(log.weights[: place + 1])
        told = (await numbering.count_ever(key)).messages
        assert told >= really
        assert told == really or place < log.gone

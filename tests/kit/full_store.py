"""Fill a store with rows of every kind and state, with the code that a node uses.

Tests of the storage check use it: the store is correct, over every table.
"""

from __future__ import annotations

from typing_extensions import override

from broker.clock import SystemClock
from broker.model import LOG_KEY_MIN, LogKey, TopicId, log_key
from broker.storage import head as heads
from broker.storage import sweep
from broker.storage.entry import PLAIN, Mark, Shared
from broker.storage.head import PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, page_key
from broker.storage.log import Logs
from broker.storage.marks import IDEMPOTENCY
from broker.storage.ownpage import PageBounds
from broker.storage.page_packer import pack
from broker.storage.payloads import PayloadLogs
from broker.storage.records import Records
from broker.storage.reference import encode_count
from broker.storage.table import Space
from broker.topics.dedupe import key_hash
from broker.topics.registry import TopicRegistry
from chaos.bare import append

NOW_MS = 1_600_000_000_000
BOUNDS = PageBounds(bytes_max=64 << 10, cells_max=6)
FULL = TopicId("check", "full")
AGAIN = TopicId("check", "again")
OPEN_LOG, SEALED_LOG, PUBLISHED_LOG, UNMARKED_LOG, DROPPED_LOG, FORGOTTEN_LOG = range(6)
"""Payload logs of FULL by their state. The root of UNMARKED_LOG does not name its reference."""


class StillClock(SystemClock):
    """A clock that stands at NOW_MS."""

    @override
    def now_ms(self) -> int:
        return NOW_MS


class Filler:
    """Fills a store; every id is later than the one before."""

    def __init__(self, logs: Logs) -> None:
        """Fill the store of ``logs``, whose clock is a StillClock and whose pages have BOUNDS."""
        self.logs = logs
        self.registry = TopicRegistry(Records(logs.resolver))
        self.payload_logs = PayloadLogs(logs, "filler")
        self._number = 0

    def ids(self, count: int) -> list[LogKey]:
        """Return the next ids, some seconds before NOW_MS."""
        self._number += 1
        return [log_key(NOW_MS - 60_000 + self._number, place) for place in range(count)]

    async def create(self, topic: TopicId) -> LogHold:
        """Create a topic and claim it."""
        made = await self.registry.create(topic, {"ttl": "3600"})
        return await self.logs.claim(LogId(topic, made.generation), "filler")

    async def delete(self, topic: TopicId, generation: int) -> None:
        """Delete a topic as a node does."""
        await self.logs.delete(LogId(topic, generation), "filler")
        await self.registry.delete(topic, generation)

    async def append(
        self, hold: LogHold, count: int = 3, shared: Shared = PLAIN, key: str | None = None
    ) -> list[LogKey]:
        """Append messages, under an idempotency key if one is given; return their ids."""
        ids = self.ids(count)
        marks: tuple[Mark, ...] = ()
        if key is not None:
            marks = (Mark(IDEMPOTENCY, key_hash(key), ids[0], ids[-1], bytes(32)),)
        await append(hold, ids, [b"payload %d" % n for n in range(count)], shared, marks)
        await hold.settled()
        return ids

    async def fill(self) -> None:
        """Make topics in every state."""
        await self._fill_full()
        await self._fill_again()
        await self.registry.create(TopicId("check", "unused"), {"ttl": "3600"})
        await self.create(TopicId("check", "empty"))
        await self.create(TopicId("check", "deleted"))
        await self.delete(TopicId("check", "deleted"), 1)
        half = await self.create(TopicId("check", "half-deleted"))
        await self.append(half)
        await self.logs.close_tail(half.log, half.root, "filler")
        await self._fill_half_rolled()
        await self._fill_packed()

    async def _fill_packed(self) -> None:
        hold = await self.create(TopicId("check", "packed"))
        for number in range(8):
            await self.append(hold, key=f"key {number}")
        resolver = self.logs.resolver
        await pack(resolver, resolver.tokens(), hold.log, LOG_KEY_MIN)
        await self.hand_over(hold)

    async def _fill_full(self) -> None:
        hold = await self.create(FULL)
        for number in range(8):
            await self.append(hold, key=f"old {number}")
        await hold.marks.flush()
        await self.hand_over(hold)
        hold = await self.logs.claim(hold.log, "filler")
        pointer = 77
        ids = [await self.append(hold, shared=Shared(pointer)) for _ in range(7)]
        await hold.rollback(pointer, ids[1][1], ids[5][1])
        for life_ms in (1, 3_600_000):
            await self.append(hold, shared=Shared(lifetime_ms=life_ms))
        await self._store(hold)
        await self.append(hold, key="new")
        await hold.marks.flush()
        await self.append(hold, shared=Shared(pointer, 1))
        await self._sweep(hold, ids[0][0])
        await self.append(hold, key="pending")
        hold.end()

    @staticmethod
    async def hand_over(hold: LogHold) -> None:
        """Hand a log off."""
        assert await hold.hand_off()

    async def _sweep(self, hold: LogHold, floor: LogKey) -> None:
        resolver = self.logs.resolver
        known = sweep.LifetimeEnds(hold.log.generation)
        await sweep.look_for_ends(hold, known)
        await sweep.end_lives(hold, known, NOW_MS)
        await sweep.raise_floor(hold, floor)
        await sweep.clear_below_floor(resolver, hold, 1)

    async def _store(self, topic: LogHold) -> None:
        """Make a payload log in every state."""
        for number in (*range(FORGOTTEN_LOG + 1), -5):
            stored = await self.payload_logs.open(topic, number)
            for place in range(8):
                await self.append(stored, shared=Shared(is_stored=True), key=f"{number} {place}")
            await stored.marks.flush()
        for number in (SEALED_LOG, PUBLISHED_LOG, UNMARKED_LOG):
            sealed = await self.payload_logs.seal(topic, number)
            assert sealed.tail is not None
            if number == SEALED_LOG:
                continue
            [row] = self.ids(1)
            shared = Shared(number, number=number)
            await append(topic, [row], [encode_count(sealed.tail.total)], shared)
            await topic.settled()
            if number == PUBLISHED_LOG:
                await self.payload_logs.mark_published(topic, number, row)
        for number in (DROPPED_LOG, FORGOTTEN_LOG):
            await self.payload_logs.drop(topic, number, NOW_MS)
            log = topic.log._replace(number=number)
            await self.payload_logs.empty(log)
        await self.payload_logs.forget(topic.log._replace(number=FORGOTTEN_LOG))

    async def _fill_again(self) -> None:
        """Make a topic in its third generation; some pages of the first are removed already."""
        for generation in (1, 2):
            hold = await self.create(AGAIN)
            for number in range(14):
                await self.append(hold, key=f"{generation} {number}")
            await hold.marks.flush()
            stored = await self.payload_logs.open(hold, 1)
            await self.append(stored, shared=Shared(is_stored=True))
            await self.delete(AGAIN, generation)
            hold.end()
        await sweep.clear_generation(self.logs.resolver, AGAIN, 1, bytes(10), 2)
        hold = await self.create(AGAIN)
        for _ in range(8):
            await self.append(hold)

    async def _fill_half_rolled(self) -> None:
        """Make a topic whose leader died between sealing its page and making the next one."""
        hold = await self.create(TopicId("check", "half-rolled"))
        await self.append(hold)
        sealed = heads.encode(hold.head._replace(state=PageState.SEALED, token=bytes(12)))
        row = page_key(hold.log, hold.page)
        swap = self.logs.resolver.swap
        assert await swap(Space.MESSAGES, row, heads.encode(hold.head), sealed)

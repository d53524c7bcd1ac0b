"""Polls of real topics, compared with a naive model: messages in id order, every start, every width."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge
from broker.model import (
    LOG_KEY_MIN,
    Message,
    Poll,
    PublishRequest,
    RollbackRange,
    Snapshot,
    log_key,
)
from broker.testing.virtual_time import VirtualLoop, simulate
from broker.topics.blockers import BlockersQuery
from broker.topics.browse import BrowseQuery
from broker.topics.pages import PollPage
from broker.topics.settings import PublishOptions
from broker.wire import attributes
from tests.kit.bench import TOPIC, Bench, Gate

OPEN, INVALID, VISIBLE = 50, 60, 40
SNAPSHOT = Snapshot(transaction_id=900, read_pointer=100, in_progress=[50], invalids=[60])
FATES = {"committed": (VISIBLE, False), "open": (OPEN, False), "invalid": (INVALID, False)}
FATES |= {"rolled back": (VISIBLE, True)}


@dataclass
class Shown:
    """A row of the message log and its messages; ``is_inline`` rows have one message."""

    key: bytes
    pointer: int | None
    rolled_back: bool
    is_inline: bool
    messages: list[Message] = field(default_factory=list)


def expected(rows: list[Shown], poll: Poll) -> list[Message]:
    found: list[Message] = []
    start = poll.start if isinstance(poll.start, bytes) else None
    for row in rows:
        if start is not None and row.key < start[:10]:
            continue
        after_it = start is not None and row.key == start[:10] and row.is_inline
        if after_it and not (poll.inclusive and row.messages[0].id == start):
            continue
        if poll.snapshot is not None and row.pointer is not None:
            if row.rolled_back or poll.snapshot.is_invalid(row.pointer):
                continue
            if not poll.snapshot.is_visible(row.pointer):
                break
        found += [
            message
            for message in row.messages
            if start is None or message.id > start or (poll.inclusive and message.id == start)
        ]
    return found if poll.limit is None else found[: poll.limit]


def beside(payload: bytes) -> tuple[bytes | None, dict[str, bytes]]:
    """Return the key and the headers of a message; some messages have none."""
    return {0: (None, {}), 1: (payload, {}), 2: (None, {"n": payload})}[int(payload) % 3]


def request_of(pointer: int | None, payloads: list[bytes]) -> PublishRequest:
    encoded = [attributes.encode(*beside(payload)) for payload in payloads]
    return PublishRequest(pointer, payloads, attributes=encoded if any(encoded) else ())


class Log:
    """Publishes rows of every kind, and keeps the expected rows."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._count = 0
        self._numbers = iter(range(1, 10_000))
        self.rows: list[Shown] = []

    def _payloads(self, count: int) -> list[bytes]:
        self._count += count
        return [b"%d" % number for number in range(self._count - count, self._count)]

    async def inline(self, count: int, fate: str | None) -> None:
        pointer, rolled_back = (None, False) if fate is None else FATES[fate]
        payloads = self._payloads(count)
        done = await self._bench.topics.publish(TOPIC, request_of(pointer, payloads))
        if rolled_back and pointer is not None:
            back = RollbackRange(pointer, done.first, done.last)
            await self._bench.topics.rollback(TOPIC, back)
        timestamp = int.from_bytes(done.first[:8], "big")
        seq = int.from_bytes(done.first[8:], "big")
        for place, payload in enumerate(payloads):
            key = log_key(timestamp, seq + place)
            message = Message(key + LOG_KEY_MIN, payload, *beside(payload))
            self.rows.append(Shown(key, pointer, rolled_back, True, [message]))

    async def reference(self, stores: list[int], fate: str) -> None:
        base, rolled_back = FATES[fate]
        # A number of its own for each log, with the fate of its base.
        number = base if base != VISIBLE else next(self._numbers) % 39 + 1
        if any(not row.is_inline and row.pointer == number for row in self.rows):
            return
        messages: list[tuple[bytes, bytes]] = []
        for count in stores:
            payloads = self._payloads(count)
            stored = await self._bench.topics.store(TOPIC, request_of(number, payloads))
            timestamp = int.from_bytes(stored.first[:8], "big")
            seq = int.from_bytes(stored.first[8:], "big")
            messages += [(log_key(timestamp, seq + i), p) for i, p in enumerate(payloads)]
        done = await self._bench.publish(pointer=number)
        if rolled_back:
            await self._bench.topics.rollback(TOPIC, RollbackRange(number, done.first, done.last))
        shown = [Message(done.first + key, payload, *beside(payload)) for key, payload in messages]
        self.rows.append(Shown(done.first, number, rolled_back, False, shown))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("inline"), st.integers(1, 3), st.sampled_from([None, None, *FATES])),
        st.tuples(
            st.just("reference"),
            st.lists(st.integers(1, 3), max_size=2),
            st.sampled_from(["committed", "committed", *FATES]),
        ),
    ),
    min_size=1,
    max_size=7,
)


async def make(bench: Bench, wanted: list[tuple[str, object, str | None]]) -> list[Shown]:
    await bench.create()
    log = Log(bench)
    for kind, size, fate in wanted:
        await bench.pass_ms(1)
        if kind == "inline":
            assert isinstance(size, int)
            await log.inline(size, fate)
        else:
            assert isinstance(size, list)
            assert fate is not None
            await log.reference(size, fate)
    return log.rows


def places(rows: list[Shown]) -> list[bytes]:
    """Return every id, every row as an id, and the ids right before and after them."""
    ids = {message.id for row in rows for message in row.messages}
    ids |= {row.key + LOG_KEY_MIN for row in rows}
    beside = {(int.from_bytes(i, "big") + d).to_bytes(20, "big") for i in ids for d in (-1, 1)}
    return sorted(ids | beside)


async def check_all(bench: Bench, rows: list[Shown], snapshot: Snapshot | None) -> None:
    everything = expected(rows, Poll(snapshot=snapshot))
    for start in [None, *places(rows)]:
        for inclusive in (True, False):
            whole = Poll(start, inclusive, None, snapshot)
            assert await bench.poll(whole) == expected(rows, whole), (start, inclusive)
    for width in range(1, len(everything) + 2):
        got: list[Message] = []
        start = None
        while page := await bench.poll(Poll(start, False, width, snapshot)):
            assert len(page) <= width
            got += page
            start = page[-1].id
            assert len(got) <= len(everything)
        assert got == everything, width


@pytest.mark.slow
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_start_and_every_width_equal_the_model(
    wanted: list[tuple[str, object, str | None]],
) -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        rows = await make(bench, wanted)
        for snapshot in (None, SNAPSHOT):
            await check_all(bench, rows, snapshot)
            bench.forget_cache()
            await check_all(bench, rows, snapshot)
        await bench.topics.close()
        bench.restart(page_messages_max=2)
        for snapshot in (None, SNAPSHOT):
            await check_all(bench, rows, snapshot)

    simulate(main)


@pytest.mark.parametrize("cached", [True, False])
class TestDefectsOfTheOriginal:
    """F1 to F6: the cases in which the original's fetch algorithm loses messages or stalls."""

    async def read_by(self, bench: Bench, width: int, cached: bool) -> list[bytes]:
        got: list[bytes] = []
        start = None
        while True:
            if not cached:
                bench.forget_cache()
            page = await bench.poll(Poll(start, inclusive=False, limit=width))
            if not page:
                return got
            got += [message.payload for message in page]
            start = page[-1].id

    async def test_f1_the_first_payload_after_an_inline_id(
        self, bench: Bench, cached: bool
    ) -> None:
        await bench.create()
        await bench.publish(b"m0")
        await bench.stored(5, b"p0", b"p1", b"p2")
        await bench.publish(pointer=5)
        assert await self.read_by(bench, 1, cached) == [b"m0", b"p0", b"p1", b"p2"]

    @pytest.mark.parametrize("width", [1, 2, 3])
    async def test_f2_f3_resuming_inside_a_transaction(
        self, bench: Bench, cached: bool, width: int
    ) -> None:
        await bench.create()
        await bench.stored(5, b"p0", b"p1")
        await bench.stored(5, b"p2", b"p3", b"p4")
        await bench.publish(pointer=5)
        await bench.publish(b"m9", b"m10")
        wanted = [b"p0", b"p1", b"p2", b"p3", b"p4", b"m9", b"m10"]
        assert await self.read_by(bench, width, cached) == wanted

    async def test_f4_resuming_behind_a_row_that_is_not_there(
        self, bench: Bench, cached: bool
    ) -> None:
        await bench.create()
        stored = await bench.stored(5, b"p0", b"p1", b"p2")
        done = await bench.publish(pointer=5)
        if not cached:
            bench.forget_cache()
        before_p0 = (int.from_bytes(stored.first, "big") - 1).to_bytes(10, "big")
        got = await bench.payloads(Poll(done.first + before_p0, inclusive=False))
        assert got == [b"p0", b"p1", b"p2"]

    async def test_f5_an_expired_id_says_nothing_about_later_transactions(
        self, bench: Bench, cached: bool
    ) -> None:
        await bench.create(ttl_s=10)
        await bench.stored(6, b"early")
        await bench.stored(5, b"old")
        await bench.publish(pointer=5)
        (old,) = await bench.poll()
        await bench.pass_ms(20_000)
        await bench.publish(pointer=6)
        if not cached:
            bench.forget_cache()
        assert await bench.payloads(Poll(old.id, inclusive=False)) == [b"early"]

    async def test_f6_an_empty_reference_costs_no_part_of_a_page(
        self, bench: Bench, cached: bool
    ) -> None:
        await bench.create()
        for number in (5, 6, 7):
            await bench.publish(pointer=number)
        await bench.publish(b"m")
        assert await self.read_by(bench, 1, cached) == [b"m"]


async def test_a_limit_of_0_gives_no_messages(bench: Bench) -> None:
    await bench.create()
    await bench.publish(b"m")
    assert await bench.poll(Poll(limit=0)) == []


async def test_a_poll_without_limit_ends_at_the_pointer_of_its_start(bench: Bench) -> None:
    await bench.create()
    bench.restart(page_messages_max=2, cache_bytes_max=0)
    await bench.publish(*[b"before"] * 5)
    stream = await bench.topics.poll(TOPIC, Poll())
    got = []
    async for messages in stream.messages():
        got += [message.payload for message in messages]
        await bench.publish(b"after")
    assert got == [b"before"] * 5


async def test_the_limit_of_the_node_applies_to_every_poll(bench: Bench) -> None:
    bench.restart(poll_messages_max=3)
    await bench.create()
    await bench.publish(*[b"m"] * 5)
    assert len(await bench.poll()) == 3
    assert len(await bench.poll(Poll(limit=2))) == 2
    assert len(await bench.poll(Poll(limit=10))) == 3


async def test_a_large_reply_comes_in_pages(bench: Bench) -> None:
    await bench.create()
    payload = bytes(100_000)
    for _ in range(30):
        await bench.publish(payload)
    for _ in range(2):
        stream = await bench.topics.poll(TOPIC, Poll())
        blocks = [block async for block in stream.blocks()]
        assert len(blocks) >= 2
        assert len(await bench.poll()) == 30
        bench.forget_cache()


@pytest.mark.parametrize("pointer", [None, 7])
async def test_one_large_commit_is_no_large_page(bench: Bench, pointer: int | None) -> None:
    await bench.create()
    await bench.publish(*[bytes(1000)] * 5000, pointer=pointer)
    for _ in range(2):
        stream = await bench.topics.poll(TOPIC, Poll())
        assert max([len(block) async for block in stream.blocks()]) < 600_000
        assert len(await bench.poll()) == 5000
        bench.forget_cache()


async def test_large_attributes_are_no_large_page(bench: Bench) -> None:
    await bench.create()
    large = attributes.encode(None, {"h": bytes(10_000)})
    for _ in range(3):
        wanted = PublishRequest(None, [b"m"] * 100, attributes=[large] * 100)
        await bench.topics.publish(TOPIC, wanted)
    for _ in range(2):
        stream = await bench.topics.poll(TOPIC, Poll())
        assert max([len(block) async for block in stream.blocks(PollPage.whole)]) < 600_000
        assert [len(each.headers["h"]) for each in await bench.poll()] == [10_000] * 300
        bench.forget_cache()


async def test_the_size_limit_of_a_message_counts_its_attributes(bench: Bench) -> None:
    await bench.create()
    bytes_max = bench.logs.entry_bytes_max
    key = attributes.encode(b"k" * 100, {})
    for size, fits in ((bytes_max - len(key), True), (bytes_max - len(key) + 1, False)):
        wanted = PublishRequest(None, [bytes(size)], attributes=[key])
        if fits:
            await bench.topics.publish(TOPIC, wanted)
        else:
            with pytest.raises(BodyTooLarge, match="key and headers"):
                await bench.topics.publish(TOPIC, wanted)


async def test_a_message_may_live_at_most_as_long_as_its_topics_ttl(bench: Bench) -> None:
    await bench.create(ttl_s=100)
    for ttl_s in (0, -1, 101):
        for call in (bench.topics.publish, bench.topics.store):
            with pytest.raises(BadRequest, match="ttl: must be between 1 and"):
                await call(TOPIC, PublishRequest(5, [b"a", b"b"], ttls_s=[None, ttl_s]))
    wanted = PublishRequest(None, [b"50", b"10", b"100"], ttls_s=[None, 10, 100])
    await bench.topics.publish(TOPIC, wanted, PublishOptions(ttl_s=50))
    await bench.topics.store(TOPIC, wanted._replace(pointer=5), PublishOptions(ttl_s=50))
    await bench.publish(pointer=5)
    for after_s, left in ((0, [b"50", b"10", b"100"]), (11, [b"50", b"100"]), (40, [b"100"])):
        await bench.pass_ms(after_s * 1000)
        assert await bench.payloads() == left * 2
        bench.forget_cache()
        assert await bench.payloads() == left * 2
    await bench.pass_ms(50_000)
    assert await bench.payloads() == []


async def test_many_stored_payloads_are_no_large_page(bench: Bench) -> None:
    await bench.create()
    await bench.stored(5, *[bytes(1000)] * 3000)
    await bench.publish(pointer=5)
    stream = await bench.topics.poll(TOPIC, Poll())
    assert max([len(block) async for block in stream.blocks()]) < 600_000
    assert len(await bench.poll()) == 3000


async def test_a_read_continues_in_storage_when_the_cache_drops_its_entries(bench: Bench) -> None:
    await bench.create()
    payload = bytes(100_000)
    for number in range(30):
        await bench.publish(payload + b"%d" % number)
    stream = await bench.topics.poll(TOPIC, Poll())
    got = []
    async for messages in stream.messages():
        got += [int(message.payload[100_000:]) for message in messages]
        bench.forget_cache()
    assert got == list(range(30))


async def test_a_reader_does_not_skip_a_stored_batch_that_the_cache_lacks(
    bench: Bench,
) -> None:
    bench.restart(page_messages_max=2)
    await bench.create()
    await bench.publish(b"1", b"2", b"3", b"4")
    bench.forget_cache()
    told = Gate()
    bench.table.on("append", told.after)
    publishing = asyncio.ensure_future(bench.publish(b"5"))
    await told.reached.wait()
    # Storage has the batch. The leader shows it only after the answer arrives.
    seen = await bench.poll()
    assert [message.payload for message in seen] == [b"1", b"2", b"3", b"4"]
    told.open()
    await publishing
    assert await bench.payloads(Poll(seen[-1].id, inclusive=False)) == [b"5"]


async def test_a_consumer_may_begin_at_messages_that_expired_by_their_own_ttl(
    bench: Bench,
) -> None:
    """The sweep leaves a stub of them. The consumer begins after an id that may be a reference's payload."""
    bench.restart(sweep_margin_ms=0)
    await bench.create(ttl_s=1000)
    gone = await bench.publish(b"one", b"two", options=PublishOptions(ttl_s=1))
    await bench.publish(b"kept")
    await bench.pass_ms(10_000)
    await bench.sweeper.sweep()
    bench.restart()
    behind = Poll(gone.first + b"\0" * 9 + b"\1", inclusive=False)
    assert await bench.payloads(behind) == [b"kept"]


async def test_an_expired_message_of_an_open_transaction_holds_no_consumer(bench: Bench) -> None:
    await bench.create()
    short = PublishOptions(ttl_s=1)
    await bench.publish(b"a", b"b", pointer=OPEN, options=short)
    await bench.stored(OPEN, b"stored")
    await bench.publish(pointer=OPEN, options=short)
    await bench.publish(b"behind")

    async def held() -> list[object]:
        """Return how each door sees the consumer."""
        cached = await bench.payloads(Poll(snapshot=SNAPSHOT))
        bench.forget_cache()
        assert await bench.payloads(Poll(snapshot=SNAPSHOT)) == cached
        found = await bench.topics.blockers(TOPIC, BlockersQuery(SNAPSHOT))
        shown = (await bench.topics.browse(TOPIC, BrowseQuery(snapshot=SNAPSHOT))).entries
        return [cached, len(found.blockers), shown[-1].payload, shown[-1].consumable]

    assert await held() == [[], 1, b"behind", False]
    await bench.pass_ms(5000)
    assert await held() == [[b"behind"], 0, b"behind", True]

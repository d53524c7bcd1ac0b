"""A broker topic as the index."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client import Client
from broker.clock import SystemClock
from broker.coordination.memory import MemoryCoordination
from broker.errors import BadRequest, Unavailable
from broker.rowlog import RowLog, Subscription, topic_index
from broker.rowlog.cell_keys import Entry
from broker.rowlog.memory import MemoryRows
from broker.rowlog.topicindex import decode_hint, encode_hint
from tests.kit.served import ServedNode
from tests.unit.rowlog.world import INDEX, ROW, TABLE, Heard

TOPIC = "app/hints"


@given(st.text(min_size=1, max_size=9), st.binary(max_size=9), st.binary(max_size=9))
def test_a_hint_is_read_as_it_was_written(name: str, row: bytes, data: bytes) -> None:
    entry = Entry(0, name, 7, 2, row, data)
    assert decode_hint(encode_hint(entry)) == entry


@given(st.binary(max_size=40))
def test_a_payload_that_is_no_hint_is_skipped(payload: bytes) -> None:
    found = decode_hint(payload)
    assert found is None or encode_hint(found) == payload


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    with ServedNode() as node:
        async with Client(node.url) as made:
            await made.create_topic(TOPIC)
            yield made


class HurriedClock(SystemClock):
    """A clock that a test can advance."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s


@pytest.mark.slow
async def test_hints_go_through_the_topic_and_the_next_processor_reads_on(client: Client) -> None:
    clock, stored = HurriedClock(), {TABLE: {}}  # type: ignore[var-annotated]
    world = MemoryCoordination(clock)

    def made() -> RowLog:
        return RowLog(
            None,
            TABLE.decode(),
            id="mq",
            rows=MemoryRows(stored),
            coordinator=world.session(),
            index=topic_index(client, TOPIC),
            clock=clock,
            settings={"scan_margin_ms": 100},
        )

    heard = Heard(False)
    async with made() as log:
        await log.subscribe(Subscription("a", backoff_ms_first=1))
        log.listen("a", heard)
        await log.put(ROW, payload=b"before", data=b"d")
        await log.start()
        await log.put(ROW, payload=b"after")
        await heard.until(ended=3)
        assert [(each.seq, each.data) for each in heard.messages] == [
            (1, b"d"),
            (1, b"d"),
            (2, b""),
        ]
        clock.later_s = 10.0
        await log.index.flush()
        assert await log.meta.position("a") > 0
    assert [key for key in stored[INDEX] if not key.startswith(b"\xff")] == []
    second = Heard()
    async with made() as log:
        log.listen("a", second)
        await log.put(ROW)
        await log.start()
        await second.until(ended=1)
        assert second.seqs == [3]
    with pytest.raises(BadRequest, match="the topic app/hints"):
        await RowLog(None, TABLE.decode(), id="mq", rows=MemoryRows(stored)).open()


class LaterClock(SystemClock):
    """The clock of a process that looks an hour later."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


@pytest.fixture
async def later(client: Client) -> AsyncIterator[tuple[RowLog, RowLog]]:
    """A rowlog's process, and one that looks an hour later."""
    stored = {TABLE: {}}  # type: ignore[var-annotated]
    rows, index = MemoryRows(stored), topic_index(client, TOPIC)
    async with (
        RowLog(None, TABLE.decode(), id="mq", rows=rows, index=index) as log,
        RowLog(
            None, TABLE.decode(), id="mq", rows=rows, index=index, clock=LaterClock()
        ) as looking,
    ):
        await log.subscribe(Subscription("a", max_tries=1))
        yield log, looking


@pytest.mark.slow
async def test_a_sweep_publishes_no_hint_that_is_there(
    client: Client, later: tuple[RowLog, RowLog]
) -> None:
    log, looking = later
    await log.put(ROW)
    assert (await looking.verify(mend=True)).is_sound
    assert len(await client.poll(TOPIC)) == 1


@pytest.mark.slow
async def test_a_sweep_publishes_a_hint_again_that_lies_before_the_position(
    client: Client, later: tuple[RowLog, RowLog]
) -> None:
    log, looking = later
    await log.subscribe(Subscription("b"))
    await log.put(ROW, data=b"d")
    hint, of_b = await client.poll(TOPIC)
    await log.meta.set_position("a", hint.timestamp_ms + 1)
    assert (await looking.verify()).without_entry == 1
    assert (await looking.verify(mend=True)).without_entry == 1
    assert [each.payload for each in await client.poll(TOPIC)] == [
        hint.payload,
        of_b.payload,
        hint.payload,
    ]


@pytest.mark.slow
async def test_a_message_that_is_put_during_a_sweep_has_a_hint(
    later: tuple[RowLog, RowLog],
) -> None:
    log, _ = later
    inventory = await log.index.inventory()
    message = await log.put(ROW)
    assert message is not None
    entry = Entry(0, "a", message.timestamp, message.seq, ROW)
    assert await inventory.lacks([entry]) == set()
    assert await inventory.lacks([entry._replace(timestamp=1)]) != set()


@pytest.mark.slow
async def test_a_removed_subscription_leaves_nothing_and_says_how_much_waited(
    later: tuple[RowLog, RowLog],
) -> None:
    log, _ = later
    log.listen("a", Heard(False))
    message = await log.put(b"dead")
    assert message is not None
    assert not await log.process(message)
    await log.put(ROW)
    await log.put(b"other")
    assert len(await log.dead("a")) == 1
    assert await log.unsubscribe("a") == 3
    assert (await log.verify()).messages == 0


@pytest.mark.slow
async def test_without_the_topic_nothing_is_put(client: Client) -> None:
    stored = {TABLE: {}}  # type: ignore[var-annotated]
    async with RowLog(
        None,
        TABLE.decode(),
        id="mq",
        rows=MemoryRows(stored),
        index=topic_index(client, "app/missing"),
    ) as log:
        await log.subscribe(Subscription("a"))
        with pytest.raises(Unavailable, match="does not exist"):
            await log.put(ROW, {b"d:x": b"1"})
    assert b"d:x" not in stored[TABLE].get(ROW, {})

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
def test_what_is_no_hint_is_passed_over(payload: bytes) -> None:
    found = decode_hint(payload)
    assert found is None or encode_hint(found) == payload


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    with ServedNode() as node:
        async with Client(node.url) as made:
            await made.create_topic(TOPIC)
            yield made


@pytest.mark.slow
async def test_hints_go_through_the_topic_and_the_next_processor_reads_on(client: Client) -> None:
    clock, stored = SystemClock(), {TABLE: {}}  # type: ignore[var-annotated]
    world = MemoryCoordination(clock)

    def made() -> RowLog:
        return RowLog(
            None,
            TABLE.decode(),
            id="mq",
            rows=MemoryRows(stored),
            coordinator=world.session(),
            index=topic_index(client, TOPIC),
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
        log.index._noted_at = float("-inf")  # type: ignore[attr-defined]
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

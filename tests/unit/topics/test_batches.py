from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.model import RowId, row_id
from broker.storage.ports import Row
from broker.testing.clock import VirtualLoop, simulate
from broker.topics.batches import answer, batch_of
from broker.topics.dedupe import Answer, decode_answer
from broker.topics.settings import Published
from broker.topics.writer import Write

PAYLOADS = st.lists(st.binary(max_size=3), min_size=1, max_size=4)
PLAIN = st.fixed_dictionaries({"payloads": PAYLOADS})
SPECIAL = st.one_of(
    st.fixed_dictionaries({"payloads": PAYLOADS, "pointer": st.integers(0, 9)}),
    st.fixed_dictionaries({"payloads": PAYLOADS, "lifetime_ms": st.integers(1, 9)}),
    st.fixed_dictionaries({"payloads": PAYLOADS, "key": st.just((b"k" * 16, b"b" * 32))}),
    st.fixed_dictionaries({"payloads": st.none(), "pointer": st.integers(0, 9)}),
)


def ids_for(writes: list[Write]) -> list[RowId]:
    return [row_id(1, number) for number in range(sum(write.rows for write in writes))]


def rows_of(write: Write, ids: list[RowId]) -> list[Row]:
    payloads = [None] if write.payloads is None else write.payloads
    return [
        Row(row, payload, write.pointer, write.number, write.lifetime_ms)
        for row, payload in zip(ids, payloads, strict=True)
    ]


@given(st.lists(st.one_of(PLAIN, SPECIAL), min_size=1, max_size=8))
def test_each_request_has_its_rows_and_is_told_which(asked: list[dict[str, Any]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        writes = [Write(loop.create_future(), **each) for each in asked]
        ids = ids_for(writes)
        batch = batch_of(writes, ids)
        answer(writes, batch)
        stored = [
            Row(row, payload, *segment[2:])
            for segment in batch.segments
            for row, payload in zip(
                segment.ids, segment.payloads or [None] * len(segment.ids), strict=True
            )
        ]
        side = list(batch.side)
        for write in writes:
            first, last, pointer, _ = await write.future
            own = ids[ids.index(first) : ids.index(last) + 1]
            assert [row for row in stored if first <= row.id <= last] == rows_of(write, own)
            assert pointer == write.pointer
            if write.key is not None:
                row = side.pop(0)
                assert (row.key, row.row) == (write.key[0], first)
                assert decode_answer(row.row, row.value) == Answer(first, last, write.key[1])
        assert not side
        assert [row.id for row in stored] == ids
        assert batch.last == ids[-1]

    simulate(main)


def test_neighbours_that_share_all_but_payloads_are_stored_as_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        asked: list[dict[str, Any]] = [{}, {}, {"lifetime_ms": 1}, {"lifetime_ms": 1}, {}]
        writes = [Write(loop.create_future(), [b"a", b"b"], **each) for each in asked]
        batch = batch_of(writes, ids_for(writes))
        assert [len(segment.ids) for segment in batch.segments] == [4, 2, 2, 2]

    simulate(main)


def test_who_has_an_answer_already_keeps_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        writes = [Write(loop.create_future(), [b"a"]) for _ in range(3)]
        ids = ids_for(writes)
        writes[0].future.cancel()
        writes[1].future.set_exception(asyncio.QueueFull())
        answer(writes, batch_of(writes, ids))
        assert writes[0].future.cancelled()
        assert isinstance(writes[1].future.exception(), asyncio.QueueFull)
        assert await writes[2].future == Published(ids[2], ids[2])

    simulate(main)

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.model import LogKey, log_key, timestamp_of
from broker.storage.entry import ENTRY_BYTES_MAX, Entry
from broker.storage.marks import PRODUCER
from broker.storage.reference import messages_of
from broker.testing.virtual_time import VirtualLoop, simulate
from broker.topics.batches import Batch, answer, batch_of, producer_run
from broker.topics.settings import PublishedIds
from broker.topics.write import ProducerMark, Write
from tests.kit.contract.log_bench import attributes_of

PAYLOADS = st.lists(st.binary(max_size=3), min_size=1, max_size=4)
PLAIN = st.fixed_dictionaries({"payloads": PAYLOADS})
EACH = st.lists(
    st.tuples(
        st.binary(max_size=3),
        st.sampled_from([b"", b"key", b"other"]),
        st.sampled_from([None, 5, 6]),
    ),
    min_size=1,
    max_size=5,
)
SPECIAL = st.one_of(
    st.fixed_dictionaries({"payloads": PAYLOADS, "pointer": st.integers(0, 9)}),
    st.fixed_dictionaries({"payloads": PAYLOADS, "lifetime_ms": st.integers(1, 9)}),
    st.fixed_dictionaries({"payloads": PAYLOADS, "key": st.just((b"k" * 16, b"b" * 32))}),
    st.fixed_dictionaries(
        {"payloads": PAYLOADS, "producer": st.just(ProducerMark(b"p" * 16, 7, 3, None))}
    ),
    st.fixed_dictionaries({"payloads": st.none(), "pointer": st.just(9)}),
    st.builds(
        lambda each, pointer, *, lives: (
            {
                "payloads": [payload for payload, _, _ in each],
                "attributes": [attributes for _, attributes, _ in each],
                "pointer": pointer,
            }
            | ({"lifetimes_ms": [life for _, _, life in each]} if lives else {})
        ),
        EACH,
        st.none() | st.integers(0, 9),
        lives=st.booleans(),
    ),
)
REFERENCES = [(9, 3, b""), (-5, 2, b"")]
EPOCH = 3


def ids_for(writes: list[Write]) -> list[LogKey]:
    return [log_key(1, number) for number in range(sum(write.count for write in writes))]


def batch(writes: list[Write], *, is_stored: bool = False) -> Batch:
    return batch_of(writes, ids_for(writes), EPOCH, is_stored=is_stored)


def write_of(loop: VirtualLoop, **asked: Any) -> Write:
    write = Write(loop.create_future(), **asked)
    if write.payloads is None:
        write.refer(REFERENCES)
    return write


def shared(entry: Entry) -> tuple[int | None, int | None, int | None]:
    return entry.pointer, entry.lifetime_ms, entry.number


@given(st.lists(st.one_of(PLAIN, SPECIAL), min_size=1, max_size=8))
def test_each_request_is_stored_and_answered_with_its_ids(asked: list[dict[str, Any]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        writes = [write_of(loop, **each) for each in asked]
        futures = [write.future for write in writes]
        made = batch(writes)
        answer(writes, made, 3)
        stored = {
            row: (entry, entry.payload(place))
            for entry in made.entries
            for place, row in enumerate(entry.ids())
        }
        beside = attributes_of(made.entries)
        assert list(stored) == made.ids == ids_for(writes)
        assert made.messages == sum(write.messages for write in writes)
        marks = [mark for entry in made.entries for mark in entry.marks]
        for write, future in zip(writes, futures, strict=True):
            first, last, pointer, _, messages, _ = await future
            own = made.ids[made.ids.index(first) : made.ids.index(last) + 1]
            assert (pointer, messages) == (write.pointer, write.messages)
            numbers = [number for number, _, _ in write.references] or [None] * len(own)
            lives = write.lifetimes_ms or [write.lifetime_ms] * len(own)
            assert [shared(stored[row][0]) for row in own] == [
                (write.pointer, life, number) for life, number in zip(lives, numbers, strict=True)
            ]
            assert [beside.get(row, b"") for row in own] == list(
                write.attributes or [b""] * len(own)
            )
            if write.payloads is not None:
                assert [stored[row][1] for row in own] == list(write.payloads)
            else:
                assert write.ids == own
            if write.key is not None:
                mark = marks.pop(0)
                assert (mark.key, mark.body) == write.key
                assert (mark.first, mark.last) == (first, last)
                assert mark in stored[last][0].marks, "it is in the entry of the last message"
            if write.producer is not None:
                mark = marks.pop(0)
                assert (mark.kind, mark.key) == (PRODUCER, write.producer.key)
                assert producer_run(mark) == (7, 3, timestamp_of(first), write.pointer)
                assert (mark.first, mark.last) == (first, last)
        assert not marks

    simulate(main)


def test_neighbouring_plain_requests_share_an_entry() -> None:
    async def main(loop: VirtualLoop) -> None:
        asked: list[dict[str, Any]] = [{}, {}, {"lifetime_ms": 1}, {"lifetime_ms": 1}, {}]
        writes = [Write(loop.create_future(), [b"a", b"b"], **each) for each in asked]
        assert [entry.count for entry in batch(writes).entries] == [4, 2, 2, 2]

    simulate(main)


def test_a_run_of_one_lifetime_is_an_entry() -> None:
    async def main(loop: VirtualLoop) -> None:
        lives = [None, None, 5, 5, 6, None]
        write = Write(loop.create_future(), [b"a"] * 6, lifetimes_ms=lives)
        made = batch([write, Write(loop.create_future(), [b"b"])]).entries
        assert [(entry.count, entry.lifetime_ms) for entry in made] == [
            (2, None),
            (2, 5),
            (1, 6),
            (1, None),
            (1, None),
        ]

    simulate(main)


def test_a_large_request_has_several_entries_and_its_key_is_in_the_last() -> None:
    async def main(loop: VirtualLoop) -> None:
        payloads = [bytes(ENTRY_BYTES_MAX // 2 + 1)] * 3
        made = batch([Write(loop.create_future(), payloads, key=(b"k" * 16, b"b" * 32))])
        assert [len(entry.marks) for entry in made.entries] == [0, 0, 1]

    simulate(main)


def test_a_reference_counts_the_messages_of_its_payload_log() -> None:
    async def main(loop: VirtualLoop) -> None:
        write = Write(loop.create_future(), None, 9)
        write.refer([(9, 70_000, b"")])
        made = batch([write])
        assert made.messages == 70_000
        assert [messages_of(entry) for entry in made.entries] == [70_000]

    simulate(main)


def test_a_request_that_is_already_answered_keeps_its_answer() -> None:
    async def main(loop: VirtualLoop) -> None:
        writes = [Write(loop.create_future(), [b"a"]) for _ in range(3)]
        gone, failed, answered = [write.future for write in writes]
        gone.cancel()
        failed.set_exception(asyncio.QueueFull())
        answer(writes, batch(writes), 3)
        ids = ids_for(writes)
        assert gone.cancelled()
        assert isinstance(failed.exception(), asyncio.QueueFull)
        assert await answered == PublishedIds(ids[2], ids[2], messages=1, generation=3)

    simulate(main)

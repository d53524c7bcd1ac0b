from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override

from broker.coordination.placement import (
    PUT_TRIES_MAX,
    Placement,
    drain,
    pin,
    read_placement,
    undrain,
    unpin,
)
from broker.errors import OutcomeUnknown, Unavailable
from broker.model import TopicId
from broker.testing.memory import MemoryRecords

A, B = TopicId("ns", "a"), TopicId("ns", "b")


class Forgetful(MemoryRecords):
    """Answers the first puts with *unknown*. ``applied``: it does them."""

    def __init__(self, unknown: int, *, applied: bool) -> None:
        super().__init__()
        self.unknown = unknown
        self.applied = applied

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        if self.unknown == 0:
            return await super().put_if(key, expected, value)
        self.unknown -= 1
        if self.applied:
            await super().put_if(key, expected, value)
        raise OutcomeUnknown("lost")


class Contended(MemoryRecords):
    """Another operator pins the topic to another node just before the first put."""

    came_between = False

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        if not self.came_between:
            self.came_between = True
            assert await super().put_if(key, expected, b'{"node": 9}')
        return await super().put_if(key, expected, value)


async def test_without_records_there_is_no_placement() -> None:
    assert await read_placement(MemoryRecords()) == Placement()


async def test_pins_are_set_moved_and_removed() -> None:
    records = MemoryRecords()
    assert await pin(records, A, 0)
    assert await pin(records, B, 255)
    assert not await pin(records, A, 0)
    assert (await read_placement(records)).pins == {A: 0, B: 255}
    assert await pin(records, A, 7)
    assert await unpin(records, B)
    assert not await unpin(records, B)
    assert (await read_placement(records)).pins == {A: 7}
    assert await pin(records, B, 1)
    assert (await read_placement(records)).pins == {A: 7, B: 1}


async def test_removing_a_pin_that_was_never_set_writes_nothing() -> None:
    records = MemoryRecords()
    assert not await unpin(records, A)
    assert not await undrain(records, 3)
    assert await records.scan_prefix(b"") == []


async def test_a_node_is_drained_until_it_is_undrained() -> None:
    records = MemoryRecords()
    assert await drain(records, 7)
    assert await drain(records, 200)
    assert not await drain(records, 7)
    assert (await records.get(b"drained/007")) is not None
    assert (await read_placement(records)).drained == {7, 200}
    assert await undrain(records, 7)
    assert not await undrain(records, 7)
    assert (await read_placement(records)).drained == {200}


@pytest.mark.parametrize("applied", [True, False])
async def test_an_unknown_outcome_is_resolved_by_reading(applied: bool) -> None:
    records = Forgetful(2, applied=applied)
    assert await pin(records, A, 5)
    assert (await read_placement(records)).pins == {A: 5}


@pytest.mark.parametrize("method", ["get", "put_if"])
async def test_a_change_stays_unknown_if_storage_does_not_answer_later(method: str) -> None:
    records = Forgetful(1, applied=method == "get")
    real, asked = getattr(records, method), 0

    async def silent(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise Unavailable("no gateway")
        return await real(*arguments)

    setattr(records, method, silent)
    with pytest.raises(OutcomeUnknown):
        await pin(records, A, 5)
    setattr(records, method, real)
    await pin(records, A, 5)
    assert (await read_placement(records)).pins == {A: 5}


async def test_an_outcome_that_stays_unknown_is_reported() -> None:
    with pytest.raises(OutcomeUnknown):
        await drain(Forgetful(PUT_TRIES_MAX, applied=False), 5)


async def test_a_concurrent_change_is_overwritten() -> None:
    records = Contended()
    assert await pin(records, A, 5)
    assert (await read_placement(records)).pins == {A: 5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"pin/ns:a:", b"{"),
        (b"pin/ns:a:", b"[]"),
        (b"pin/ns:a:", b'{"node": 256}'),
        (b"pin/ns:a:", b'{"node": "7"}'),
        (b"pin/ns", b'{"node": 7}'),
        (b"pin/ns:a:b", b'{"node": 7}'),
        (b"drained/x", b'{"drained": true}'),
        (b"drained/256", b'{"drained": true}'),
        (b"drained/001", b"\xff"),
    ],
)
async def test_an_undecodable_record_is_ignored_and_reported(key: bytes, value: bytes) -> None:
    records = MemoryRecords()
    await pin(records, B, 3)
    await drain(records, 2)
    assert await records.put_if(key, None, value)
    placement = await read_placement(records)
    assert (placement.pins, placement.drained) == ({B: 3}, {2})
    assert len(placement.problems) == 1
    assert repr(key) in placement.problems[0]


async def test_an_undecodable_record_is_replaced_by_the_next_change() -> None:
    records = MemoryRecords()
    assert await records.put_if(b"pin/ns:a:", None, b"{")
    assert await records.put_if(b"drained/001", None, b"{")
    assert await unpin(records, A)
    assert await drain(records, 1)
    assert await read_placement(records) == Placement({}, frozenset({1}))

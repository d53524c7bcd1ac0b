from __future__ import annotations

import asyncio

import pytest

from broker.storage.shared import AT_ONCE, SharedRead
from tests.kit.bench import settle


class Source:
    """Keeps the reads that began. A test answers each of them."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[int]] = []

    async def read(self) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.begun.append(answer)
        return await answer


async def test_a_shared_read_begins_after_all_its_callers_have_asked() -> None:
    source = Source()
    shared = SharedRead(source.read)
    asked = []
    for _ in range(AT_ONCE):
        asked.append([asyncio.ensure_future(shared()) for _ in range(3)])
        await settle()
    assert len(source.begun) == AT_ONCE
    late = [asyncio.ensure_future(shared()) for _ in range(3)]
    await settle()
    assert len(source.begun) == AT_ONCE, "no more reads are in flight at once"
    source.begun[0].set_result(0)
    await settle()
    assert len(source.begun) == AT_ONCE + 1
    for number, answer in enumerate(source.begun[1:], 1):
        answer.set_result(number)
    assert [await asyncio.gather(*tasks) for tasks in asked] == [[0] * 3, [1] * 3]
    assert await asyncio.gather(*late) == [2] * 3


async def test_a_cancelled_caller_ends_no_shared_read_and_all_callers_get_its_error() -> None:
    source = Source()
    shared = SharedRead(source.read)
    tasks = [asyncio.ensure_future(shared()) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    source.begun[0].set_exception(ValueError("down"))
    for task in tasks[1:]:
        with pytest.raises(ValueError, match="down"):
            await task
    again = asyncio.ensure_future(shared())
    await settle()
    source.begun[1].set_result(5)
    assert await again == 5

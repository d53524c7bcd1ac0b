"""Reads of large pages share the room of a node."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import Overloaded
from broker.storage.read_room import COUNTED_BYTES_MIN, WAIT_S, ReadRoom
from broker.testing.virtual_time import VirtualLoop, simulate
from tests.kit.bench import settle

MIB = 1024 * 1024


async def reads(room: ReadRoom, size: int, go_on: asyncio.Event, order: list[int]) -> None:
    async with room.taken(size):
        order.append(size)
        await go_on.wait()


def test_reads_wait_for_room_in_their_order_and_small_ones_do_not() -> None:
    async def main(_: VirtualLoop) -> None:
        room, go_on, order = ReadRoom(100 * MIB), asyncio.Event(), list[int]()
        wanted = [60 * MIB, 50 * MIB, 10 * MIB, COUNTED_BYTES_MIN - 1]
        tasks = [asyncio.create_task(reads(room, size, go_on, order)) for size in wanted]
        await settle()
        assert order == [wanted[0], wanted[3]], "the others wait, also the one that would fit"
        assert room.bytes == 60 * MIB
        go_on.set()
        await asyncio.gather(*tasks)
        assert order == [wanted[0], wanted[3], wanted[1], wanted[2]]
        assert room.bytes == 0

    simulate(main)


def test_a_read_that_gives_up_leaves_its_room_to_the_next() -> None:
    async def main(loop: VirtualLoop) -> None:
        room, go_on, order = ReadRoom(100 * MIB), asyncio.Event(), list[int]()
        first = asyncio.create_task(reads(room, 500 * MIB, go_on, order))
        await settle()
        assert room.bytes == 100 * MIB, "a page larger than the room is read alone"
        waiting = asyncio.create_task(reads(room, 90 * MIB, go_on, order))
        behind = asyncio.create_task(reads(room, 20 * MIB, go_on, order))
        await settle()
        waiting.cancel()
        began = loop.time()
        with pytest.raises(Overloaded):
            await behind
        assert loop.time() - began == pytest.approx(WAIT_S)
        go_on.set()
        await first
        await reads(room, 100 * MIB, go_on, order)
        assert room.bytes == 0

    simulate(main)

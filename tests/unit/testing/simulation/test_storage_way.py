"""The way from one node to storage: lost calls, lost answers, and the outcomes of calls."""

import asyncio
import random

import pytest

from broker.errors import BodyTooLarge
from broker.storage.call_health import CANCELLED
from broker.storage.memory.adversary import CALM, AdversaryTable
from broker.storage.memory.table import MemoryTable
from broker.storage.table import HEAD, NotWritten, Space, WriteUnknown
from broker.testing.simulation.storage_way import CALL_S, LinkedTable, StorageWay
from broker.testing.virtual_time import pass_time, simulate

MESSAGES = Space.MESSAGES
PAGE = b"ns:t:\0\0\0\1page"


class World:
    def __init__(self, loop) -> None:
        self.adversary = AdversaryTable(
            loop, random.Random(1), CALM, MemoryTable(is_alone=False, cell_bytes_max=100)
        )
        self.way = StorageWay()
        self.ended = []
        self.table = LinkedTable(self.adversary, self.way, self.ended.append)

    @property
    def head(self):
        head = self.adversary.table.spaces[MESSAGES].get(PAGE).head
        return None if head is None else head.value

    @property
    def kinds(self):
        return [(ended.call, ended.kind) for ended in self.ended]


def run(story):
    async def main(loop):
        await story(World(loop))

    simulate(main)


def test_all_calls_arrive_and_are_counted():
    async def story(world):
        table = world.table
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1", b"e1": b"1"})
        assert await table.change(MESSAGES, PAGE, b"1", {HEAD: b"2"}, [b"e0"], clear=False)
        assert (await table.get(MESSAGES, PAGE, [HEAD]))[HEAD].value == b"2"
        cells = await table.cells(MESSAGES, PAGE, b"e", b"f", cells_max=9, bytes_max=9)
        assert cells == ([(b"e1", b"1")], False)
        assert await table.columns(MESSAGES, PAGE, b"e", b"f") == [b"e1"]
        await table.put(MESSAGES, {PAGE: b"3"})
        [(key, head)] = await table.scan(MESSAGES, PAGE, PAGE, limit=9, reverse=True)
        assert (key, head.value) == (PAGE, b"3")
        await table.delete(MESSAGES, [PAGE])
        assert world.head is None
        calls = ["change", "change", "get", "cells", "columns", "put", "scan", "delete"]
        assert world.kinds == [(call, None) for call in calls]
        assert all(0 <= ended.seconds < 1 for ended in world.ended)

    run(story)


def test_a_call_that_is_lost_is_never_done():
    async def story(world):
        world.way.cut(there=True, back=False)
        with pytest.raises(WriteUnknown, match="time-out"):
            await world.table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        await pass_time(100)
        assert (world.head, world.kinds) == (None, [("change", "silent")])
        assert world.ended[0].seconds == pytest.approx(CALL_S)
        assert world.way.happened == {"storage_calls_lost": 1}
        world.way.heal()
        assert await world.table.change(MESSAGES, PAGE, None, {HEAD: b"1"})

    run(story)


def test_a_call_whose_answer_is_lost_is_done():
    async def story(world):
        take_back = world.way.cut(there=False, back=True)
        with pytest.raises(WriteUnknown):
            await world.table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        assert (world.head, world.kinds) == (b"1", [("change", "silent")])
        assert world.way.happened == {"storage_answers_lost": 1}
        take_back()
        assert (await world.table.get(MESSAGES, PAGE, [HEAD]))[HEAD].value == b"1"

    run(story)


def test_a_later_change_of_the_arguments_has_no_effect():
    async def story(world):
        puts = {HEAD: b"1"}
        sending = asyncio.ensure_future(world.table.change(MESSAGES, PAGE, None, puts))
        await pass_time()
        puts[HEAD] = b"changed after the call"
        assert await sending
        assert world.head == b"1"

    run(story)


def test_storage_executes_the_call_of_a_cancelled_caller():
    async def story(world):
        change = asyncio.ensure_future(world.table.change(MESSAGES, PAGE, None, {HEAD: b"1"}))
        await pass_time()
        change.cancel()
        await asyncio.wait([change])
        await pass_time(1)
        assert (world.head, world.kinds) == (b"1", [("change", CANCELLED)])

    run(story)


def test_a_caller_gets_the_errors_of_storage():
    async def story(world):
        with pytest.raises(BodyTooLarge):
            await world.table.put(MESSAGES, {PAGE: bytes(101)})
        with pytest.raises(ValueError, match="head"):
            await world.table.put(MESSAGES, {PAGE: b""})
        await world.adversary.close()
        with pytest.raises(NotWritten):
            await world.table.get(MESSAGES, PAGE, [HEAD])
        assert world.kinds[0] == ("put", None)
        assert world.kinds[2] == ("get", "refused")

    run(story)


def test_a_close_ends_only_the_access_of_its_node():
    async def story(world):
        other = LinkedTable(world.adversary, StorageWay(), world.ended.append)
        await world.table.close()
        with pytest.raises(NotWritten):
            await world.table.get(MESSAGES, PAGE, [HEAD])
        assert await other.get(MESSAGES, PAGE, [HEAD]) == {}

    run(story)

"""Each behaviour of the adversary, alone and certain."""

import asyncio
import random
from dataclasses import replace

import pytest

from broker.storage.cells import Cell, CellsError, CellsRefused, RowCells, Table
from broker.testing.adversary import CALM, AdversaryCells
from broker.testing.clock import pass_time, simulate

MESSAGES = Table.MESSAGES


def row(name: bytes, value: bytes = b"x", tag: int = 2) -> RowCells:
    return RowCells(b"ns:t:\0\0\0\1" + name, {b"p": Cell(tag, value)})


def control(number: int) -> bytes:
    return b"control %d" % number


def run(story, **bias):
    """Tell a story with these behaviours certain and all others impossible."""

    async def main(loop):
        chosen = replace(CALM, late_ms=100.0, **dict.fromkeys(bias.pop("always", ()), 1.0), **bias)
        await story(AdversaryCells(loop, random.Random(1), chosen))

    simulate(main)


async def names(cells: AdversaryCells) -> list[bytes]:
    found = await cells.scan(MESSAGES, b"ns:t:\0\0\0\1", b"ns:u", rows_max=100, bytes_max=1 << 20)
    return [each.key[-1:] for each in found.rows]


def test_calm_it_does_what_it_says():
    async def story(cells):
        await cells.put(MESSAGES, [row(b"b"), row(b"a")])
        assert await names(cells) == [b"a", b"b"]
        assert await cells.check_and_put(MESSAGES, b"c", None, control(1))
        assert not await cells.check_and_put(MESSAGES, b"c", None, control(2))
        assert await cells.check_and_put(MESSAGES, b"c", control(1), control(2))
        await cells.delete(MESSAGES, [row(b"a").key])
        assert await names(cells) == [b"b"]
        assert not cells.happened

    run(story)


def test_a_partial_put_is_an_error_and_leaves_a_part():
    async def story(cells):
        with pytest.raises(CellsError):
            await cells.put(MESSAGES, [row(b"a"), row(b"b"), row(b"c")])
        assert 0 < len(await names(cells)) < 3
        assert cells.happened["partial_puts"] == 1

    run(story, always=["partial_put"])


def test_a_late_write_is_an_error_and_comes_later():
    async def story(cells):
        with pytest.raises(CellsError):
            await cells.put(MESSAGES, [row(b"a")])
        with pytest.raises(CellsError):
            await cells.check_and_put(MESSAGES, b"c", None, control(1))
        assert await names(cells) == []
        assert cells.still_to_come == 2
        await pass_time(10)
        assert await names(cells) == [b"a"]
        assert (await cells.get(MESSAGES, b"c")) is not None
        assert (cells.still_to_come, cells.happened["late_writes"]) == (0, 2)

    run(story, always=["late_write"])


def test_a_late_compare_and_set_finds_what_is_there_then():
    async def story(cells):
        with pytest.raises(CellsError):
            await cells.check_and_put(MESSAGES, b"c", None, control(1))
        cells.heal()
        assert await cells.check_and_put(MESSAGES, b"c", None, control(2))
        await pass_time(10)
        columns = await cells.get(MESSAGES, b"c")
        assert columns is not None
        assert columns[b"c"].value == control(2)

    run(story, always=["late_write"])


def test_a_write_comes_again():
    async def story(cells):
        await cells.put(MESSAGES, [row(b"a", b"first")])
        cells.heal()
        await cells.delete(MESSAGES, [row(b"a").key])
        await pass_time(10)
        assert await names(cells) == [b"a"]

    run(story, always=["again"])


def test_a_lie_is_done_and_says_false():
    async def story(cells):
        assert not await cells.check_and_put(MESSAGES, b"c", None, control(1))
        columns = await cells.get(MESSAGES, b"c")
        assert columns is not None
        assert columns[b"c"].value == control(1)
        assert not await cells.check_and_put(MESSAGES, b"c", None, control(2))
        assert cells.happened["lies"] == 1

    run(story, always=["lie"])


def test_a_lost_answer_is_done():
    async def story(cells):
        with pytest.raises(CellsError):
            await cells.put(MESSAGES, [row(b"a")])
        assert await names(cells) == [b"a"]

    run(story, always=["lost_answer"])


def test_a_refused_call_is_not_done():
    async def story(cells):
        with pytest.raises(CellsRefused):
            await cells.put(MESSAGES, [row(b"a")])
        await pass_time(10)
        assert await names(cells) == []

    run(story, always=["refused"])


def test_a_move_loses_what_was_not_synced():
    async def story(cells):
        await cells.put(MESSAGES, [row(b"a")])
        cells.bias = CALM
        await cells.put(MESSAGES, [row(b"b")], synced=False)
        assert await names(cells) == [b"a", b"b"]
        cells.bias = replace(CALM, move=1.0)
        await cells.put(MESSAGES, [row(b"c")])
        assert await names(cells) == [b"a", b"c"]
        assert cells.happened["unsynced_lost"] == 1

    run(story, always=["move"])


def test_old_answers_are_earlier_states_and_never_half_a_put():
    async def story(cells):
        for number in range(10):
            await cells.put(MESSAGES, [row(b"%d" % number), row(b"%d" % number + b"!")])
        cells.bias = replace(CALM, old_answer=1.0)
        seen = {tuple(await names(cells)) for _ in range(200)}
        assert {len(state) for state in seen} <= set(range(0, 20, 2))
        assert len(seen) == 10

    run(story)


def test_rows_are_never_shown_as_they_were_before_a_change_in_place():
    async def story(cells):
        await cells.put(MESSAGES, [row(b"a", b"before")])
        await cells.put(MESSAGES, [row(b"a", b"after", tag=3)])
        await cells.put(MESSAGES, [row(b"b")])
        cells.bias = replace(CALM, old_answer=1.0)
        for _ in range(50):
            found = await cells.scan(
                MESSAGES, b"ns:t:\0\0\0\1", b"ns:u", rows_max=9, bytes_max=1 << 20
            )
            assert found.rows[0].columns[b"p"].value == b"after"

    run(story)


def test_whoever_is_killed_on_the_way_may_have_been_heard():
    async def story(cells):
        heard = 0
        for number in range(40):
            task = asyncio.ensure_future(cells.put(MESSAGES, [row(b"%02d" % number)]))
            await pass_time(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await pass_time(10)
        heard = len(await cells.keys(MESSAGES, b"ns", b"nt", rows_max=100))
        assert 0 < heard < 40

    run(story, delay_ms=10.0)

"""The adversary table: each behaviour alone and certain, and all of them from one seed."""

import asyncio
import random
from collections import Counter
from dataclasses import asdict, replace

import pytest

from broker.storage.columns import is_rolled_column
from broker.storage.memory.adversary import CALM, AdversaryTable, Bias
from broker.storage.memory.past import ROWS_MAX, STATES_MAX
from broker.storage.memory.table import MemoryTable
from broker.storage.table import HEAD, NotWritten, Space, TableError, WriteUnknown
from broker.testing.virtual_time import pass_time, simulate

MESSAGES, PAYLOADS, RECORDS = Space.MESSAGES, Space.PAYLOADS, Space.RECORDS
PAGE = b"ns:t:\0\0\0\1page"
ROOT = b"ns:t:\0\0\0\0c"


def run(story, *always, table=None, assumed=None, seed=1, **bias):
    """Run a story; the behaviours ``always`` are certain, and all others do not happen."""

    async def main(loop):
        chosen = bias_of(*always, **bias)
        adversary = AdversaryTable(loop, random.Random(seed), chosen, table, **(assumed or {}))
        await story(adversary)

    simulate(main)


def bias_of(*always, **bias):
    return replace(CALM, **dict.fromkeys(always, 1.0), **bias)


async def head_of(table, row=PAGE, space=MESSAGES):
    """Return the current head, without any misbehaviour."""
    head = table.table.spaces[space].get(row).head
    return None if head is None else head.value


async def grow(table, heads, row=PAGE, space=MESSAGES, columns=(b"e%d",)):
    """Change a row's head several times, each with a new cell, without any misbehaviour."""
    bias, table.bias = table.bias, CALM
    for head in heads:
        before = await head_of(table, row, space)
        puts = {column % head: b"%d" % head for column in columns} if space is not RECORDS else {}
        assert await table.change(space, row, before, {HEAD: b"%d" % head, **puts})
    table.bias = bias


def test_a_calm_adversary_is_a_correct_table():
    async def story(table):
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1", b"e1": b"1"})
        assert not await table.change(MESSAGES, PAGE, None, {HEAD: b"2"})
        await table.put(RECORDS, {b"a": b"1", b"b": b"2"})
        await table.delete(RECORDS, [b"a"])
        assert [key for key, _ in await table.scan(RECORDS, b"", b"z", limit=9)] == [b"b"]
        assert await table.columns(MESSAGES, PAGE, b"e", b"f") == [b"e1"]
        assert (table.happened, table.still_to_come) == (Counter(), 0)

    run(story)


def test_a_refused_call_is_not_done():
    async def story(table):
        with pytest.raises(NotWritten):
            await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        with pytest.raises(NotWritten):
            await table.get(MESSAGES, PAGE, [HEAD])
        await pass_time(1000)
        assert await head_of(table) is None
        assert table.happened == {"refused": 2}

    run(story, "refused")


def test_a_slow_call_is_done_late_and_answered_after_that():
    async def story(table):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        change = loop.create_task(table.change(MESSAGES, PAGE, None, {HEAD: b"1"}))
        await pass_time(0.05)
        assert await head_of(table) is None
        assert await change is True
        assert loop.time() - began_s > 1.0
        assert table.happened == {"slow": 1}

    run(story, "slow", delay_ms=0.0, late_ms=60_000.0)


def test_a_late_write_raises_and_is_made_later():
    async def story(table):
        with pytest.raises(WriteUnknown):
            await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        with pytest.raises(WriteUnknown):
            await table.put(RECORDS, {b"a": b"1"})
        assert (await head_of(table), table.still_to_come) == (None, 2)
        await pass_time(1000)
        assert (await head_of(table), await head_of(table, b"a", RECORDS)) == (b"1", b"1")
        assert table.still_to_come == 0
        assert table.happened == {"late_writes": 2, "late_writes_made": 1}

    run(story, "late_write")


def test_a_late_write_and_its_repeat_are_made_only_once():
    async def story(table):
        await grow(table, [1])
        with pytest.raises(WriteUnknown):
            await table.change(MESSAGES, PAGE, b"1", {HEAD: b"2"})
        table.heal()
        assert await table.change(MESSAGES, PAGE, b"1", {HEAD: b"2"})
        assert await table.change(MESSAGES, PAGE, b"2", {HEAD: b"3"})
        await pass_time(1000)
        assert await head_of(table) == b"3"
        assert table.happened == {"late_writes": 1}

    run(story, "late_write", late_ms=60_000.0)


def test_a_late_creation_may_arrive_after_its_page_is_gone():
    async def story(table):
        with pytest.raises(WriteUnknown):
            await table.change(MESSAGES, PAGE, None, {HEAD: b"late", b"e1": b"late"})
        table.heal()
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        await table.delete(MESSAGES, [PAGE])
        assert await head_of(table) is None
        await pass_time(1000)
        assert await head_of(table) == b"late"
        assert table.happened["late_writes_made"] == 1

    run(story, "late_write", late_make_ms=60_000.0)


def test_a_write_of_kind_never_raises_and_is_not_made():
    async def story(table):
        with pytest.raises(WriteUnknown):
            await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        await pass_time(1000)
        assert (await head_of(table), table.happened) == (None, {"never": 1})

    run(story, "never")


def test_a_write_whose_answer_is_lost_raises_and_is_made():
    async def story(table):
        with pytest.raises(WriteUnknown):
            await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        assert (await head_of(table), table.happened) == (b"1", {"lost_answers": 1})

    run(story, "lost_answer")


def test_a_write_may_be_made_twice():
    async def story(table):
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1"})
        table.bias = CALM
        await table.delete(MESSAGES, [PAGE])
        await pass_time(1000)
        assert await head_of(table) == b"1"
        assert table.happened == {"again": 1, "again_made": 1}

    run(story, "again", late_make_ms=60_000.0)


def test_a_lie_answers_false_for_a_change_that_was_made():
    async def story(table):
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1"}) is False
        assert await head_of(table) == b"1"
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"2"}) is False
        assert (await head_of(table), table.happened) == (b"1", {"lies": 1})

    run(story, "lie")


def test_a_change_may_be_refused_by_an_older_state():
    async def story(table):
        assert await table.change(MESSAGES, PAGE, None, {HEAD: b"1"}), "it has no past"
        assert await table.change(MESSAGES, PAGE, b"1", {HEAD: b"2"}) is False
        await pass_time(1000)
        assert (await head_of(table), table.happened) == (b"1", {"old_falses": 1})

    run(story, "old_false")


@pytest.mark.parametrize("is_put", [True, False])
def test_a_write_of_only_some_rows_raises(is_put):
    async def story(table):
        rows = {b"a": b"1", b"b": b"1", b"c": b"1"}
        if not is_put:
            table.bias = CALM
            await table.put(RECORDS, rows)
            table.bias = bias_of("partial")
        with pytest.raises(WriteUnknown):
            await (table.put(RECORDS, rows) if is_put else table.delete(RECORDS, list(rows)))
        assert 0 < len(await table.scan(RECORDS, b"", b"z", limit=9)) < 3
        assert table.happened == {"partial": 1}

    run(story, "partial")


def test_a_read_may_get_no_answer():
    async def story(table):
        for reading in (
            table.get(MESSAGES, PAGE, [HEAD]),
            table.scan(MESSAGES, PAGE, PAGE, limit=1),
            table.columns(MESSAGES, PAGE, b"", b"z"),
        ):
            with pytest.raises(WriteUnknown):
                await reading
        assert table.happened == {"no_answers": 3}

    run(story, "no_answer")


def test_a_read_of_a_page_may_be_short():
    async def story(table):
        await grow(table, [1, 2, 3])
        found = await table.cells(MESSAGES, PAGE, b"e", b"f", cells_max=9, bytes_max=999)
        assert 0 < len(found.cells) < 3
        assert found.more
        assert table.happened == {"short": 1}

    run(story, "short")


async def shown(table, reading, times=60):
    """Return all different answers of many equal reads."""
    return {repr(await reading(table)) for _ in range(times)}


READINGS = {
    "get": lambda table: table.get(MESSAGES, PAGE, [HEAD, b"e2"]),
    "get a cell": lambda table: table.get(MESSAGES, PAGE, [b"e3"]),
    "cells": lambda table: table.cells(MESSAGES, PAGE, b"e", b"f", cells_max=9, bytes_max=999),
    "columns": lambda table: table.columns(MESSAGES, PAGE, b"e", b"f"),
    "scan": lambda table: table.scan(MESSAGES, PAGE[:-4], PAGE + b"z", limit=9),
}
CURRENT = {
    "get a head": lambda table: table.get(MESSAGES, PAGE, [HEAD]),
    "get a root": lambda table: table.get(MESSAGES, ROOT, [HEAD]),
    "get a record": lambda table: table.get(RECORDS, b"a", [HEAD]),
    "scan an index": lambda table: table.scan(MESSAGES, ROOT, ROOT + b"z", limit=9),
    "scan records": lambda table: table.scan(RECORDS, b"a", b"z", limit=9),
}


@pytest.mark.parametrize("reading", READINGS)
def test_a_read_may_be_stale(reading):
    async def story(table):
        await grow(table, [1, 2, 3])
        assert len(await shown(table, READINGS[reading])) > 1
        assert table.happened["old_rows"] > 10

    run(story, "old_answer")


@pytest.mark.parametrize("reading", CURRENT)
@pytest.mark.parametrize("is_assumed", [True, False])
def test_heads_and_indexes_are_current_if_that_is_assumed(reading, is_assumed):
    async def story(table):
        for row, space in ((PAGE, MESSAGES), (ROOT, MESSAGES), (b"a", RECORDS)):
            await grow(table, [1, 2, 3], row, space)
        answers = await shown(table, CURRENT[reading])
        assert (len(answers) == 1) == is_assumed
        assert (table.happened["old_rows"] == 0) == is_assumed

    assumed = {"current_gets": is_assumed, "current_indexes": is_assumed}
    run(story, "old_answer", assumed=assumed)


def test_reads_of_a_store_that_is_alone_are_current():
    async def story(table):
        await grow(table, [1, 2, 3])
        for reading in READINGS.values():
            assert len(await shown(table, reading, 20)) == 1
        assert await table.change(MESSAGES, PAGE, b"3", {HEAD: b"4"})

    run(story, "old_answer", "old_false", table=MemoryTable(is_alone=True))


def test_a_stale_read_shows_a_former_state():
    async def story(table):
        await grow(table, range(1, 7))
        states = [[b"e%d" % n for n in range(1, last + 1)] for last in range(7)]
        answers = await shown(table, READINGS["columns"], 200)
        assert answers == {repr(state) for state in states}

    run(story, "old_answer")


def test_each_row_of_a_scan_may_be_stale_by_itself_and_deleted_rows_may_appear():
    async def story(table):
        rows = [PAGE + b"%d" % n for n in range(3)]
        for row in rows:
            await grow(table, [1, 2], row)
        await grow(table, [9], rows[2])
        table.bias = CALM
        await table.delete(MESSAGES, [rows[2]])
        table.bias = bias_of("old_answer")
        answers = []
        for _ in range(300):
            found = await table.scan(MESSAGES, PAGE, PAGE + b"z", limit=9)
            answers.append({key[-1:]: cell.value for key, cell in found})
        assert {b"0": b"2", b"1": b"1"} in answers
        assert {b"0": b"1", b"1": b"2"} in answers
        assert any(answer.get(b"2") == b"9" for answer in answers)
        limited = [await table.scan(MESSAGES, PAGE, PAGE + b"z", limit=1) for _ in range(50)]
        assert {len(found) for found in limited} <= {0, 1}

    run(story, "old_answer")


def test_no_read_shows_a_state_before_a_rollback():
    rolled = b"e%010d1" + bytes(8) + b"x"
    assert is_rolled_column(rolled % 3)

    async def story(table):
        await grow(table, [1, 2])
        await grow(table, [3], columns=(rolled,))
        after = await shown(table, READINGS["columns"])
        assert len(after) == 1
        await grow(table, [4])
        assert len(await shown(table, READINGS["columns"])) == 2
        assert repr([]) not in await shown(table, READINGS["columns"])

    run(story, "old_answer")


def test_the_past_has_limits():
    async def story(table):
        await grow(table, range(1, 40))
        answers = await shown(table, READINGS["get"], 200)
        assert len(answers) == STATES_MAX + 1
        for n in range(ROWS_MAX):
            await grow(table, [1], PAGE + b"%d" % n)
        assert len(await shown(table, READINGS["get"])) == 1

    run(story, "old_answer")


def test_puts_of_marks_do_not_end_the_past_of_pages():
    async def story(table):
        await grow(table, [1, 2])
        table.bias = CALM
        await table.put(MESSAGES, {ROOT + b"%d" % n: b"mark" for n in range(2 * ROWS_MAX)})
        table.bias = bias_of("old_answer")
        assert len(await shown(table, READINGS["get"])) > 1

    run(story, "old_answer")


def test_a_write_of_a_cancelled_caller_is_made_or_not():
    outcomes = Counter()

    async def story(table):
        change = asyncio.ensure_future(table.change(MESSAGES, PAGE, None, {HEAD: b"1"}))
        await pass_time(0.001)
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        assert await head_of(table) is None
        await pass_time(10_000)
        outcomes[await head_of(table)] += 1
        assert table.happened["killed"] == (await head_of(table) == b"1")

    for seed in range(20):
        run(story, seed=seed, delay_ms=60_000.0)
    assert outcomes[None] > 0
    assert outcomes[b"1"] > 0


def test_the_clock_of_each_topics_server_may_be_wrong():
    async def story(table):
        seen = set()
        for n in range(20):
            row = b"ns:t%d:\0\0\0\1page" % n
            for _ in range(2):
                await grow(table, [len(seen)], row)
                seen.add((n, table.table.spaces[MESSAGES].get(row).head.server_ms))
        assert len(seen) == 20
        assert {ms for _, ms in seen} == {1000, 61_000}
        assert table.happened["wrong_clocks"] > 0

    table = MemoryTable(server_ms=lambda: 1000, is_alone=False)
    run(story, table=table, assumed={"clocks_ms": (0, 60_000)})


def test_writes_to_one_space_may_be_slow():
    async def story(table):
        loop = asyncio.get_running_loop()
        table.slow_s[RECORDS] = 7.0
        await table.put(MESSAGES, {PAGE: b"1"})
        assert loop.time() < 1
        await table.put(RECORDS, {b"a": b"1"})
        assert loop.time() > 7
        table.heal()
        assert not any(table.slow_s.values())

    run(story)


def hostile(seed):
    """Change two rows many times; return the answers, the last head and the counts of behaviours."""
    seen = []

    async def story(table):
        for turn in range(400):
            row = PAGE + b"%d" % (turn % 2)
            try:
                expected = await head_of(table, row)
                puts = {HEAD: b"%d" % turn, b"e%d" % (turn % 20): b"%d" % turn}
                seen.append(await table.change(MESSAGES, row, expected, puts))
                await table.put(MESSAGES, {ROOT + b"%d" % n: b"%d" % turn for n in range(3)})
                cells = await table.cells(MESSAGES, row, b"e", b"f", cells_max=9, bytes_max=99)
                seen.append(len(cells.cells))
            except TableError as error:
                seen.append(str(error))
        while table.still_to_come:
            await pass_time(1)
        seen.append((await head_of(table, PAGE + b"0"), sorted(table.happened.items())))

    run(story, seed=seed, **asdict(Bias()))
    return seen


def test_with_the_usual_bias_every_behaviour_happens():
    [*_, (_, happened)] = hostile(7)
    expected = "refused slow late_writes never lost_answers again lies old_falses partial no_answers old_rows short"
    assert set(expected.split()) <= dict(happened).keys()


def test_one_seed_gives_one_history():
    assert hostile(5) == hostile(5)
    assert hostile(5) != hostile(6)

"""Named cursors: puts of unknown outcome, races of nodes, and topics that are deleted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.errors import (
    CursorMoved,
    NotFound,
    OutcomeUnknown,
    StorageCorrupt,
    StorageFull,
    TooManyCursors,
)
from broker.model import MessageId
from broker.storage.records import Records
from broker.storage.resolve import Resolver
from broker.storage.table import WriteUnknown
from broker.testing.mutants import in_force
from broker.topics.cursors import RECORD_PREFIX, Cursors
from tests.kit.bench import TOPIC, Bench, Gate, Hook, done_but, failing, passing

PLACE, LATER = bytes(range(20)), bytes(range(1, 21))


def of_another_node(bench: Bench) -> Cursors:
    records = Records(Resolver(bench.memory, bench.clock))
    return Cursors(records, bench.clock, cursors_max=100)


async def two_readers_move_one_cursor(bench: Bench) -> MessageId | None:
    """Let two readers of one cursor each put a place; return the last one. Raises CursorMoved for one of them."""
    topic, mine, others = await bench.create(), bench.topics.cursors, of_another_node(bench)
    made = await mine.put(topic, "c", None, None, "")
    await others.put(topic, "c", LATER, made.version, "other")
    await mine.put(topic, "c", PLACE, made.version, "mine")
    return (await mine.get(topic, "c")).after


async def test_a_reader_that_lost_a_race_does_not_move_the_cursor(bench: Bench) -> None:
    with pytest.raises(CursorMoved):
        await two_readers_move_one_cursor(bench)


async def test_without_its_version_a_put_moves_a_cursor_back(bench: Bench) -> None:
    with in_force("cursor-version"):
        assert await two_readers_move_one_cursor(bench) == PLACE < LATER


async def test_one_of_two_concurrent_puts_is_refused(bench: Bench) -> None:
    topic, gate = await bench.create(), Gate()
    made = await bench.topics.cursors.put(topic, "c", None, None, "")
    bench.table.on("record", gate.before)
    late = asyncio.ensure_future(bench.topics.cursors.put(topic, "c", PLACE, made.version, "late"))
    await gate.reached.wait()
    moved = await of_another_node(bench).put(topic, "c", LATER, made.version, "")
    gate.open()
    with pytest.raises(CursorMoved) as lost:
        await late
    assert lost.value.cursor["version"] == moved.version


async def test_a_put_without_an_answer_is_unknown_if_another_reader_moved_on(bench: Bench) -> None:
    topic, cursors = await bench.create(), bench.topics.cursors
    others = of_another_node(bench)
    made = await cursors.put(topic, "c", None, None, "")

    async def overtaken(real: Hook, *arguments: Any, **named: Any) -> Any:
        await real(*arguments, **named)
        now = await others.get(topic, "c")
        assert now.after == PLACE
        await others.put(topic, "c", LATER, now.version, "")
        raise WriteUnknown("lost")

    bench.table.on("record", overtaken)
    with pytest.raises(OutcomeUnknown):
        await cursors.put(topic, "c", PLACE, made.version, "")
    assert (await cursors.get(topic, "c")).after == LATER


async def test_a_put_without_an_answer_is_repeated(bench: Bench) -> None:
    topic, cursors = await bench.create(), bench.topics.cursors
    made = await cursors.put(topic, "c", None, None, "")
    bench.table.on("record", done_but(OutcomeUnknown("x")))
    with pytest.raises(OutcomeUnknown):
        await cursors.put(topic, "c", PLACE, made.version, "mine")
    moved = await cursors.put(topic, "c", PLACE, made.version, "mine")
    # The store reads again, and finds the put.
    bench.table.on("record", done_but(WriteUnknown("x")))
    assert (await cursors.put(topic, "c", LATER, moved.version, "mine")).after == LATER


async def test_a_creation_without_an_answer_is_repeated(bench: Bench) -> None:
    topic, cursors = await bench.create(), bench.topics.cursors
    bench.table.on("record", passing, done_but(OutcomeUnknown("of the index")))
    with pytest.raises(OutcomeUnknown):
        await cursors.put(topic, "c", None, None, "mine")
    made = await cursors.put(topic, "c", None, None, "mine")
    assert made.before is None
    assert [each.name for each in (await cursors.page(topic, "", 9)).cursors] == ["c"]


async def test_a_creation_that_storage_denies_by_mistake_is_found(bench: Bench) -> None:
    topic, cursors, others = await bench.create(), bench.topics.cursors, of_another_node(bench)

    async def denied(real: Hook, *arguments: Any, **named: Any) -> bool:
        await real(*arguments, **named)
        await others.put(topic, "other", None, None, "")
        return False

    bench.table.on("record", passing, denied)
    made = await cursors.put(topic, "c", PLACE, None, "mine")
    assert await cursors.get(topic, "c") == made
    assert (await cursors.put(topic, "c", LATER, made.version, "mine")).after == LATER


async def test_a_deletion_is_done_even_if_its_record_stays(bench: Bench) -> None:
    topic, cursors = await bench.create(), bench.topics.cursors
    await cursors.put(topic, "c", None, None, "")
    bench.table.on("delete", failing(StorageFull("no space")))
    assert await cursors.delete(topic, "c")
    with pytest.raises(NotFound):
        await cursors.get(topic, "c")
    assert not await cursors.delete(topic, "c")


async def test_a_cursor_that_is_deleted_meanwhile_is_gone(bench: Bench) -> None:
    topic, gate = await bench.create(), Gate()
    cursors = bench.topics.cursors
    made = await cursors.put(topic, "c", None, None, "")
    bench.table.on("record", gate.before)
    late = asyncio.ensure_future(cursors.put(topic, "c", PLACE, made.version, ""))
    await gate.reached.wait()
    others = of_another_node(bench)
    assert await others.delete(topic, "c")
    gate.open()
    with pytest.raises(CursorMoved):
        await late
    with pytest.raises(NotFound):
        await cursors.get(topic, "c")
    # A new cursor of the same name is another cursor.
    await others.put(topic, "c", LATER, None, "")
    with pytest.raises(CursorMoved):
        await cursors.put(topic, "c", PLACE, made.version, "")


async def test_the_limit_holds_when_nodes_create_cursors_at_once(bench: Bench) -> None:
    bench.restart(cursors_max=1)
    topic, gate = await bench.create(), Gate()
    bench.table.on("record", gate.before)
    late = asyncio.ensure_future(bench.topics.cursors.put(topic, "late", None, None, ""))
    await gate.reached.wait()
    await of_another_node(bench).put(topic, "early", None, None, "")
    gate.open()
    with pytest.raises(TooManyCursors):
        await late
    assert len(await records_of(bench)) == 2  # The index and one cursor.


async def records_of(bench: Bench) -> list[bytes]:
    return [key for key, _ in await bench.records.scan_prefix(RECORD_PREFIX)]


async def test_the_sweeper_removes_the_cursors_of_topics_that_are_gone(bench: Bench) -> None:
    for generation in (1, 2):
        topic = await bench.create()
        await bench.topics.cursors.put(topic, f"c{generation}", None, None, "")
        if generation == 1:
            await bench.topics.delete(TOPIC)
    await bench.sweeper.sweep()
    page = await bench.topics.cursors.page(topic, "", 9)
    assert ([each.name for each in page.cursors], len(await records_of(bench))) == (["c2"], 2)
    await bench.topics.delete(TOPIC)
    await bench.sweeper.sweep()
    assert await records_of(bench) == []


@pytest.mark.parametrize("value", [b"{", b"[]", json.dumps({"after": "x"}).encode()])
async def test_a_record_that_is_no_cursor_is_corrupt(bench: Bench, value: bytes) -> None:
    topic, cursors = await bench.create(), bench.topics.cursors
    await cursors.put(topic, "c", None, None, "")
    _, key = await records_of(bench)
    found = await bench.records.get(key)
    await bench.records.put_if(key, found.version, value)
    with pytest.raises(StorageCorrupt):
        await cursors.get(topic, "c")


async def test_a_cursor_is_created_while_many_others_are(bench: Bench) -> None:
    """Each is a change of one record. Of a hundred beside each other 23 were answered that the outcome is unknown."""
    topic, others = await bench.create(), of_another_node(bench)
    numbers = iter(range(90))

    async def overtaken(real: Hook, *arguments: Any, **named: Any) -> Any:
        number = next(numbers, None)
        if number is not None:
            bench.table.on("record", overtaken)
            await others.put(topic, f"other{number}", None, None, "")
        return await real(*arguments, **named)

    bench.table.on("record", overtaken)
    assert (await bench.topics.cursors.put(topic, "c", None, None, "")).name == "c"

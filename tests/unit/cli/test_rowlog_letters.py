"""``broker rowlog dead`` and ``retry`` with more dead letters than one list shows."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.rowlog import Subscription, directory
from broker.rowlog.cell_keys import INDEX_COLUMN, meta_key
from broker.rowlog.letters import LISTED_MAX
from broker.rowlog.memory import MemoryRows
from broker.rowlog.row_table import RowTable
from tests.unit.cli.running import run
from tests.unit.rowlog.test_letters import strand, with_a_held_message
from tests.unit.rowlog.world import Heard, World, until, virtual

COUNT = LISTED_MAX + 2
LAST = f"{COUNT - 1:04}:1"
Stored = dict[bytes, dict[bytes, dict[bytes, bytes]]]


@pytest.fixture(scope="module")
def dead() -> Stored:
    """The tables of a rowlog with COUNT dead letters of "a"."""
    stored: Stored = {}

    @virtual
    async def fill(world: World) -> None:
        log = await world.log(Subscription("a", max_tries=1, parallel=100))
        log.listen("a", Heard(*[False] * COUNT))
        for each in range(COUNT):
            await log.put(b"%04d" % each)
        await log.start()
        await until(lambda: log.figures.values["dead", "a"] == COUNT, within_s=600)
        await log.close()
        stored.update(world.stored)

    fill()
    return stored


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    """The tables that commands find."""
    made: Stored = {}

    @asynccontextmanager
    async def rows_at(*_: Any, **__: Any) -> AsyncIterator[RowTable]:
        yield MemoryRows(made)

    monkeypatch.setattr(directory, "rows_at", rows_at)
    return made


@pytest.fixture
def many(dead: Stored, stored: Stored) -> None:
    """Let commands find COUNT dead letters."""
    for name, table in dead.items():
        stored[name] = {key: {**row} for key, row in table.items()}


@pytest.mark.usefixtures("many")
def test_the_list_says_that_there_are_more(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, told = run(capsys, "rowlog", "dead", "mq", "a", "--json")
    assert (code, len(json.loads(out))) == (0, LISTED_MAX)
    assert f"These are the oldest {LISTED_MAX}" in told
    out = run(capsys, "rowlog", "show", "mq", "--json")[1]
    assert json.loads(out)["depths"][0]["dead"] == COUNT


@pytest.mark.parametrize("words", [("retry", "--all"), ("dead", "--drop-all")])
@pytest.mark.usefixtures("many")
def test_all_means_all(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    command, option = words
    code, out, _ = run(capsys, "rowlog", command, "mq", "a", option)
    assert (code, len(out.splitlines())) == (0, COUNT)
    assert json.loads(run(capsys, "rowlog", "dead", "mq", "a", "--json")[1]) == []


@pytest.mark.usefixtures("many")
def test_a_letter_behind_the_list_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "rowlog", "retry", "mq", "a", LAST)[:2] == (0, f"revived {LAST}\n")
    code, out, told = run(capsys, "rowlog", "dead", "mq", "a", "--drop", "0000:1", "--drop", "no:1")
    assert (code, out, "no:1" in told) == (1, "", True)


def test_all_passes_over_held_letters_but_not_those_that_nothing_holds_any_more(
    stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    @virtual
    async def hold(world: World) -> None:
        await with_a_held_message(world)
        stored.update(world.stored)

    @virtual
    async def let_go(world: World) -> None:
        world.stored = stored
        await strand(await world.log(), world)

    hold()
    capsys.readouterr()
    assert run(capsys, "rowlog", "retry", "mq", "second", "--all")[:2] == (0, "")
    let_go()
    capsys.readouterr()
    assert run(capsys, "rowlog", "retry", "mq", "second", "--all")[:2] == (0, "revived row:1\n")


@pytest.mark.usefixtures("many")
def test_a_row_may_have_any_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "rowlog", "put", "mq", "\udcff", "--cell", "d:a=\udcfe")[0] == 0
    code, out, _ = run(capsys, "rowlog", "show", "mq", "\udcff", "--json")
    assert (code, json.loads(out)[0]["seq"]) == (0, 1)


def test_a_table_that_is_no_rowlog_hides_no_other(
    dead: Stored, stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.update(dead)
    stored[b"rowlog-\xff"] = {}
    stored[b"rowlog-later"] = {meta_key("setup"): {INDEX_COLUMN: b'{"format": 99}'}}
    code, out, told = run(capsys, "rowlog", "list", "--json")
    assert (code, [each["id"] for each in json.loads(out)]) == (1, ["mq"])
    assert "problem: rowlog-\\xff: There is no rowlog" in told
    assert "problem: rowlog-later: The rowlog's setup has format 99" in told

"""``broker rowlog dead`` and ``retry`` with more dead letters than one list shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
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


MODULES = {
    "misspelt": "def on_message(:",
    "ending": "raise RuntimeError('no configuration')",
    "fine": "async def on_message(message): ...\nasync def two(message, more): ...\nname = 1",
}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["indexer=:on_message"], "write SUBSCRIPTION=MODULE:FUNCTION"),
        (["indexer=misspelt:on_message"], "SyntaxError"),
        (["indexer=ending:on_message"], "RuntimeError: no configuration"),
        (["indexer=fine:another"], "AttributeError"),
        (["indexer=missing:on_message"], "ModuleNotFoundError"),
        (["indexer=fine:two"], "A listener is called with 1 argument by position"),
        (["indexer=fine:name"], "A listener is a function, not int"),
        (["indexer=fine:on_message", "--serve", "here"], "--serve: 'here' is not host:port"),
        (["indexer=fine:on_message", "--listen-only"], "--listen-only needs --serve"),
        (["indexer=fine:on_message", "--url", "http://me:1"], "--url needs --serve"),
    ],
)
def test_a_listener_that_can_not_be_imported_is_a_usage_error(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # The command changes the path, too; this restores it.
    # No server listens there: a command that is not refused fails with another code.
    unreachable = ["--hbase", "127.0.0.1:1"]
    code, _, told = run(capsys, "rowlog", "process", "mq", *unreachable, "--listener", *words)
    assert (code, says in told) == (2, True), told

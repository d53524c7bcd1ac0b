"""A repaired store that lacks a part of the transactions' journal: it says so, hides what it hid, and can begin anew."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import plyvel
import pytest
from structlog.testing import capture_logs

from broker.clock import SystemClock
from broker.config.sections import Config, TransactionsConfig
from broker.storage.leveldb.directory_repair import repair
from broker.storage.leveldb.layout import cells_prefix
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.storage.table import Space
from tests.kit.serving import Broker, topic_path
from tests.unit.api.test_blockers import ALLOWED, JSON, hidden, post, seen

JOURNAL = b"*:transactions:"
LOST = [slice(0, 1), slice(2, 3), slice(-1, None), slice(0, None)]


@asynccontextmanager
async def serving(
    directory: Path, transactions: TransactionsConfig | None = None
) -> AsyncIterator[Broker]:
    table = await open_table(directory)
    logs = Logs(table, SystemClock())
    config = Config(transactions=transactions or TransactionsConfig())
    broker = Broker(config, stores=(logs, Records(logs.resolver)))
    yield broker
    await broker.close()
    await table.close()


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A store with an invalid transaction's message, and a journal of edits without a snapshot."""
    async with serving(tmp_path / "data") as broker:
        await broker.call("PUT", topic_path("t"))
        for _ in range(3):
            await hidden(broker)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    return tmp_path / "killed"


async def mended(directory: Path, lost: slice) -> tuple[Path, list[str]]:
    database = plyvel.DB(str(directory / "db"))
    cells = database.iterator(prefix=cells_prefix(Space.MESSAGES, JOURNAL)[:1], include_value=False)
    keys = [key for key in cells if JOURNAL in key]
    assert len(keys) >= 6
    for key in keys[lost]:
        database.delete(key)
    database.close()
    report = await repair(directory, directory.with_name("mended"))
    assert (report.problems, report.wrong) == ([], 0)
    return directory.with_name("mended"), report.lost


@pytest.mark.parametrize("lost", LOST)
async def test_without_a_part_of_its_journal_the_service_hides_what_it_hid(
    directory: Path, lost: slice
) -> None:
    copy, report = await mended(directory, lost)
    assert "*:transactions" in report[0]
    assert "docs/guides/operating-transactions.md#a-damaged-journal" in report[0]
    async with serving(copy) as broker:
        for path in ("", "/5/invalidate"):
            reply = await post(broker, path)
            assert (reply.status, reply.json["code"]) == (500, "storage_corrupt")
            assert "The journal of transactions lacks a part" in reply.json["message"]
            assert "broker tx reset" in reply.json["message"]
        reply = await broker.call("POST", topic_path("t", "poll?committed=true"), b"{}", JSON)
        assert reply.json["code"] == "storage_corrupt"
        text = {"Content-Type": "text/plain"}
        assert (await broker.call("POST", topic_path("t", "publish"), b"plain", text)).status == 200
        assert (await post(broker, "/reset")).json["code"] == "not_allowed"


@pytest.mark.parametrize("lost", LOST)
async def test_a_reset_begins_the_journal_anew(directory: Path, lost: slice) -> None:
    before = await last_pointer(directory)
    copy, _ = await mended(directory, lost)
    async with serving(copy, ALLOWED) as broker:
        with capture_logs() as lines:
            assert (await post(broker, "/reset")).status == 200
        (line,) = [each for each in lines if each["event"] == "hidden messages become visible"]
        assert (line["operation"], line["in_progress"], line["invalid"]) == ("reset", None, None)
        assert await seen(broker) == ["hidden"] * 3
        begun = await hidden(broker)
        assert begun > before
        shutil.copytree(copy, directory.with_name("killed-again"))
    async with serving(directory.with_name("killed-again")) as broker:
        assert await seen(broker) == ["hidden"] * 3
        assert int((await post(broker, "")).json["transaction_id"]) > begun


async def last_pointer(directory: Path) -> int:
    shutil.copytree(directory, directory.with_name("looked-at"))
    async with serving(directory.with_name("looked-at")) as broker:
        return int((await broker.call("GET", "/v1/transactions", b"", JSON)).json["write_pointer"])


async def test_a_whole_snapshot_behind_the_lost_part_restores_the_service(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as broker:
        await broker.call("PUT", topic_path("t"))
        for _ in range(3):
            await hidden(broker)
        led = broker.transactions._journal.led
        assert led is not None
        raise_floor, led.leader.raise_floor = led.leader.raise_floor, unraised
        await led.write_snapshot()
        led.leader.raise_floor = raise_floor
        begun = await hidden(broker)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    copy, _ = await mended(tmp_path / "killed", slice(2, 3))
    async with serving(copy) as broker:
        assert await seen(broker) == []
        assert int((await post(broker, "")).json["transaction_id"]) > begun


async def unraised(_: bytes) -> None:
    """Stand for a floor that could not be raised after the snapshot was written."""

"""A broker that is killed at random moments under load keeps all acknowledged messages."""

import os
import random
import time
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.storage.check import verify
from broker.storage.leveldb.table import open_table
from broker.storage.log import Logs
from broker.storage.report import CheckReport
from broker.testing.broker_process import BrokerProcess
from chaos.checkers import check
from chaos.history import History, calls_of, of
from tests.kit.kill_broker import BrokerDriver, located
from tests.kit.kills import Extent, run_kills

KILLS = int(os.environ.get("BROKER_KILLS", "50"))
KILLS_IN_SHORT = 8
MESSAGES_A_KILL = 400
LIFE_MAX_S = 10**10


async def checked(directory: Path) -> CheckReport:
    """Return the report of `broker storage verify`."""
    table = await open_table(directory)
    try:
        return await verify(Logs(table, SystemClock()))
    finally:
        await table.close()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [KILLS_IN_SHORT, pytest.param(KILLS, marks=pytest.mark.nightly)])
async def test_kills_lose_nothing_that_was_acknowledged(
    tmp_path: Path, drawn_seed: int, kills: int
) -> None:
    messages = kills * MESSAGES_A_KILL
    history = History(time.monotonic_ns)
    broker = BrokerProcess(tmp_path / "data", ["--transaction-life-max", str(LIFE_MAX_S)])
    driver = BrokerDriver(broker)
    try:
        extent = Extent(kills, messages, calls_max=300)
        counts = await run_kills(driver, history, random.Random(drawn_seed), extent)
        await driver.client.close()
        assert broker.stop() == 0
    finally:
        broker.kill()
    print(f"{counts}, seed {drawn_seed}")  # noqa: T201  Print the totals.
    calls = calls_of(located(history.events))
    verdict = check(calls)
    assert verdict.violations == (), f"{counts}, seed {drawn_seed}"
    assert verdict.is_known
    report = await checked(tmp_path / "data")
    assert report.problems == [], f"seed {drawn_seed}"
    # Topics are deleted meanwhile, and their acknowledged messages go with them.
    assert report.messages >= messages * 9 // 10
    assert counts.kills >= kills
    assert counts.acknowledged >= messages
    assert counts.unknown > 0
    for op in ("rollback", "reference", "delete", "create"):
        assert any(call.is_ok for call in of(calls, op)), f"no {op} was ever acknowledged"

"""A broker that is killed at random moments under load has everything that it acknowledged."""

import os
import random
import time
from pathlib import Path

import pytest

from broker.testing.checkers import check
from broker.testing.history import History, calls_of, of
from broker.testing.kill_broker import BrokerDriver, located
from broker.testing.kills import Extent, run_kills
from broker.testing.process import BrokerProcess

KILLS = int(os.environ.get("BROKER_KILLS", "50"))
MESSAGES = 400 * KILLS
LIFE_MAX_S = 10**10


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    history = History(time.monotonic_ns)
    broker = BrokerProcess(tmp_path / "data", ["--transaction-life-max", str(LIFE_MAX_S)])
    driver = BrokerDriver(broker)
    try:
        extent = Extent(KILLS, MESSAGES, calls_max=300)
        counts = await run_kills(driver, history, random.Random(seed), extent)
        await driver.client.close()
        assert broker.stop() == 0
    finally:
        broker.kill()
    print(f"{counts}, seed {seed}")  # noqa: T201  The totals are asked for.
    calls = calls_of(located(history.events))
    verdict = check(calls)
    assert verdict.violations == (), f"{counts}, seed {seed}"
    assert verdict.is_known
    assert counts.kills >= KILLS
    assert counts.acknowledged >= MESSAGES
    assert counts.unknown > 0
    for op in ("rollback", "reference", "delete", "create"):
        assert any(call.is_ok for call in of(calls, op)), f"no {op} was ever acknowledged"

"""A store is killed at random moments, again and again; nothing acknowledged may be missing."""

import os
import random
import time
from pathlib import Path

import pytest

from broker.storage.leveldb_check import check as check_store
from broker.testing.checkers import check
from broker.testing.history import History
from broker.testing.kill_store import StoreDriver
from broker.testing.kills import Extent, run_kills

KILLS = int(os.environ.get("BROKER_KILLS", "15"))
MESSAGES = 400 * KILLS


@pytest.mark.integration
@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    history = History(time.monotonic_ns)
    driver = StoreDriver(tmp_path / "data")
    try:
        counts = await run_kills(driver, history, random.Random(seed), Extent(KILLS, MESSAGES))
    finally:
        await driver.stop()
    verdict = check(history.calls())
    assert verdict.violations == (), f"{counts}, seed {seed}"
    assert verdict.is_known
    assert counts.kills >= KILLS
    assert counts.acknowledged >= MESSAGES
    assert counts.unknown > 0
    report = check_store(tmp_path / "data")
    assert report.problems == []

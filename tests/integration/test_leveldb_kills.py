"""A store is killed at random moments and at each of its writes; no acknowledged message may be missing."""

import os
import random
import time
from pathlib import Path

import pytest

from broker.storage.leveldb.directory_repair import verify_directory
from chaos.checkers import check
from chaos.history import History
from tests.kit.kill_store import DieAt, StoreDriver
from tests.kit.kills import Extent, run_kills, run_to_a_death

KILLS = int(os.environ.get("BROKER_KILLS", "15"))
MESSAGES = 400 * KILLS


@pytest.mark.integration
@pytest.mark.slow
async def test_kills_lose_no_acknowledged_message(tmp_path: Path) -> None:
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
    assert (await verify_directory(tmp_path / "data")).problems == [], f"seed {seed}"


CALLS = 14


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_death_at_any_write_loses_no_acknowledged_message(
    tmp_path: Path, when: str, drawn_seed: int
) -> None:
    died, number, unknown = True, 0, 0
    while died:
        number += 1
        history = History(time.monotonic_ns)
        driver = StoreDriver(tmp_path / str(number), DieAt(number, when))
        try:
            died = await run_to_a_death(driver, history, random.Random(drawn_seed), CALLS)
        finally:
            await driver.stop()
        verdict = check(history.calls())
        assert verdict.violations == (), f"at write {number}, seed {drawn_seed}"
        report = await verify_directory(tmp_path / str(number))
        assert report.problems == [], f"at write {number}, seed {drawn_seed}"
        unknown += sum(event.type == "unknown" for event in history.events)
    assert number > CALLS
    assert unknown >= number - 1

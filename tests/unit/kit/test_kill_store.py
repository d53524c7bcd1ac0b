from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.driver import Refused, UnknownResult
from tests.kit.kill_store import StoreDriver


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[StoreDriver]:
    made = StoreDriver(tmp_path / "data")
    await made.start()
    yield made
    await made.stop()


async def test_each_operation_reaches_the_store_and_survives_a_kill(driver: StoreDriver) -> None:
    generation = await driver.create("t")
    done = await driver.publish("t", generation, ["a", "b"], pointer=5)
    await driver.rollback("t", generation, 5, done.first, done.last)
    keyed = await driver.publish("t", generation, ["c"], key="key")
    stored = await driver.store("t", generation, ["d"], 9)
    reference = await driver.reference("t", generation, 9)
    await driver.kill()
    await driver.start()
    again = await driver.publish("t", generation, ["c"], key="key")
    assert (again.first, again.last, again.replayed) == (keyed.first, keyed.last, True)
    seen = await driver.read("t", generation)
    assert seen.rows == [
        (done.first, "a", -5),
        (done.last, "b", -5),
        (keyed.first, "c", None),
        (reference.first, None, 9),
    ]
    assert seen.pointer == reference.first
    assert await driver.payloads("t", generation, 9) == [(stored.first, "d")]


async def test_a_deleted_topic_refuses_and_the_next_generation_is_empty(
    driver: StoreDriver,
) -> None:
    await driver.create("t")
    await driver.publish("t", 1, ["a"])
    await driver.delete("t", 1)
    with pytest.raises(Refused):
        await driver.publish("t", 1, ["b"])
    assert await driver.create("t") == 2
    assert (await driver.read("t", 2)).rows == []


async def test_the_outcome_of_a_call_to_a_dead_process_is_unknown(driver: StoreDriver) -> None:
    await driver.kill()
    with pytest.raises(UnknownResult):
        await driver.create("t")

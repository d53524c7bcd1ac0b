"""Rollbacks of very many messages."""

import pytest

from tests.integration.attacks import sent
from tests.kit.attacked import AVRO, PUBLISHES_MIN, Attacked
from tests.kit.neighbour import TOPIC
from tests.kit.serving import topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_rollback_of_very_many_messages(broker: Attacked) -> None:
    """The messages are in the neighbour's own topic, and its publishes go on meanwhile."""
    told: list[bytes] = []

    async def prepare() -> None:
        told.extend([await broker.publish(TOPIC, pointer, 100_000) for pointer in sent.pointers(2)])

    async def attack() -> None:
        while told:
            path = topic_path(TOPIC, "rollback")
            assert (await broker.ask("POST", path, told.pop(), AVRO)).status == 200
        await broker.neighbour.more(PUBLISHES_MIN)

    await broker.withstands(attack, prepare=prepare, peak_bytes_max=512 * sent.MIB)

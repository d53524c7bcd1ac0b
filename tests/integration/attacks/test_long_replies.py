"""A broker withstands readers of very long replies."""

import asyncio

import pytest

from tests.integration.attacks import sent
from tests.kit.attacked import JSON, Attacked
from tests.kit.serving import topic_path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("count", "requests"), [(50_000, 2), pytest.param(100_000, 10, marks=pytest.mark.nightly)]
)
async def test_very_many_messages_as_json(
    broker: Attacked, topic: str, count: int, requests: int
) -> None:
    await broker.fill(topic, [b"x"] * count, requests)

    async def attack() -> None:
        async with asyncio.timeout(60):
            reply = await broker.ask("POST", topic_path(topic, "poll"), b"{}", JSON)
        assert reply.body.count(b'"id"') == count * requests

    await broker.withstands(attack, peak_bytes_max=512 * sent.MIB)

"""The harness finds what it looks for."""

import pytest

from broker.testing.attacked import Attacked

pytestmark = [pytest.mark.integration]
MIB = 1024 * 1024


async def test_nothing_is_withstood(broker: Attacked) -> None:
    async def attack() -> None:
        reply = await broker.ask("GET", "/ping")
        assert reply.status == 200

    told = await broker.withstands(attack, peak_bytes_max=256 * MIB)
    print(told)  # noqa: T201

"""A broker and its neighbour for each test, so that what one attack leaves behind meets no other."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.testing.attacked import Attacked, attacked


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Attacked]:
    async with attacked(tmp_path / "data") as running:
        yield running

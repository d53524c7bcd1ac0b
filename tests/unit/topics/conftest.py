"""Topics over memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.testing.virtual_time import VirtualLoop
from tests.kit.bench import Bench


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run the tests of this folder in virtual time, but for those that use threads."""
    if "leveldb" in item.path.name:
        return {"asyncio": asyncio.new_event_loop}
    return {"virtual": VirtualLoop}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.topics.close()

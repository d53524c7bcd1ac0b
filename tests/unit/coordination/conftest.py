"""Leading over memory, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.testing.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run the tests of this folder in virtual time."""
    del item
    return {"virtual": VirtualLoop}

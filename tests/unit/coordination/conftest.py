"""Coordination over memory, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.ports import Lease
from broker.testing.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run the tests of this folder in virtual time."""
    del item
    return {"virtual": VirtualLoop}


@pytest.fixture
def record_verifications(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[TreeCoordinator], list[str]]:
    """Return a function for a session. It returns the resources of the session's leases that are verified from now on."""

    def record(session: TreeCoordinator) -> list[str]:
        verified: list[str] = []
        acquire = session.acquire

        async def recorded(resource: str, deadline: float) -> Lease:
            lease = await acquire(resource, deadline)
            verify = lease.verify

            async def noted() -> bool:
                verified.append(resource)
                return await verify()

            monkeypatch.setattr(lease, "verify", noted)
            return lease

        monkeypatch.setattr(session, "acquire", recorded)
        return verified

    return record

"""Keep the leases of one node: take a lease on request, share it among all requests, keep it while it is wanted.

Before a claim, the node must know that it held the lease after the log's last fencing. A counter of fencings gives the
order: a lease is good after a fencing if the node began to take it, or to verify it, after that fencing::

    fencing 1      taken      fencing 2        verified
    ───┼────────────┼────────────┼────────────────┼───▶
                     good after 1                  good after 2
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.clock import Clock
from broker.coordination.ports import Coordinator, Lease
from broker.errors import NoLeader

WAIT_S = 30.0
"""The time that one attempt waits in line. A caller that still wants the lease then begins another attempt."""


class _Acquired:
    """An acquired lease. ``good_after`` is the last fencing after which it is known to be held."""

    __slots__ = ("good_after", "lease", "lock")

    def __init__(self, lease: Lease, good_after: int) -> None:
        self.lease = lease
        self.good_after = good_after
        self.lock = asyncio.Lock()


class Leases:
    """The leases by resource. ``wanted`` tells, when a lease arrives, whether this node still needs it."""

    def __init__(
        self, coordinator: Coordinator, clock: Clock, wanted: Callable[[str], bool]
    ) -> None:
        """Begin without a lease."""
        self.fencings = 0
        """The number of times that another epoch took a log from this node; the caller counts them."""
        self._coordinator = coordinator
        self._clock = clock
        self._wanted = wanted
        self._acquired: dict[str, _Acquired] = {}
        self._taking: dict[str, asyncio.Task[None]] = {}

    @property
    def resources(self) -> list[str]:
        """Return the resources that this node holds, as far as it knows."""
        return [resource for resource in list(self._acquired) if self.has(resource)]

    def has(self, resource: str) -> bool:
        """Return whether this node took a lease and does not know that it lost it."""
        acquired = self._acquired.get(resource)
        if acquired is None:
            return False
        if not acquired.lease.valid:
            del self._acquired[resource]
            return False
        return True

    def taking(self, resource: str) -> asyncio.Task[None]:
        """Return the shared task that waits for a lease. When it is done, ``has`` tells the result."""
        task = self._taking.get(resource)
        if task is None:
            task = self._taking[resource] = asyncio.ensure_future(self._take(resource))
            task.add_done_callback(lambda _: self._taking.pop(resource, None))
        return task

    async def _take(self, resource: str) -> None:
        good_after = self.fencings
        try:
            lease = await self._coordinator.acquire(resource, self._clock.monotonic() + WAIT_S)
        except NoLeader:
            return  # Each caller has a deadline of its own, and asks again before it.
        if self._wanted(resource):
            self._acquired[resource] = _Acquired(lease, good_after)
        else:
            await lease.release()

    async def is_good(self, resource: str, fencing: int) -> bool:
        """Return whether this node holds a lease that was taken, or verified, after a fencing.

        Raises:
            Unavailable: the lease must be verified, and the coordinator does not answer.
        """
        if not self.has(resource):
            return False
        acquired = self._acquired[resource]
        if acquired.good_after >= fencing:
            return True
        async with acquired.lock:
            if acquired.good_after < fencing:
                good_after = self.fencings
                if await acquired.lease.verify():
                    acquired.good_after = good_after
        return acquired.good_after >= fencing and self.has(resource)

    async def release(self, resource: str) -> None:
        """Release a lease, if it is held."""
        acquired = self._acquired.pop(resource, None)
        if acquired is not None:
            await acquired.lease.release()

    async def close(self) -> None:
        """Stop waiting for leases, and release all."""
        taking = list(self._taking.values())
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        await asyncio.gather(*(self.release(resource) for resource in list(self._acquired)))

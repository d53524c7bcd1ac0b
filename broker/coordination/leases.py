"""The leases of one node: taken when they are asked for, shared by all who ask, kept while wanted.

A lease is worth what is known of it, and since when. A counter of fencings orders that: a lease is good
after a fencing if its taking, or a question whether it is still held, began after it::

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
"""How long one attempt waits in line. Whoever still wants the lease then begins another."""


class _Held:
    """A lease that was acquired. ``good_after`` is the last fencing that it is known to outlive."""

    __slots__ = ("good_after", "lease", "lock")

    def __init__(self, lease: Lease, good_after: int) -> None:
        self.lease = lease
        self.good_after = good_after
        self.lock = asyncio.Lock()


class Leases:
    """Leases by resource. ``wanted`` says whether a lease that was waited for is still of use."""

    def __init__(
        self, coordinator: Coordinator, clock: Clock, wanted: Callable[[str], bool]
    ) -> None:
        """Begin with none."""
        self.fencings = 0
        """How often another epoch took a log from this node; the caller counts."""
        self._coordinator = coordinator
        self._clock = clock
        self._wanted = wanted
        self._held: dict[str, _Held] = {}
        self._taking: dict[str, asyncio.Task[None]] = {}

    @property
    def resources(self) -> list[str]:
        """What is held, as far as is known."""
        return [resource for resource in list(self._held) if self.holds(resource)]

    def holds(self, resource: str) -> bool:
        """Whether a lease was taken, and nothing is known against it."""
        held = self._held.get(resource)
        if held is None:
            return False
        if not held.lease.valid:
            del self._held[resource]
            return False
        return True

    def taking(self, resource: str) -> asyncio.Task[None]:
        """Wait for a lease, with all others who do. When it is done ``holds`` tells what came of it."""
        task = self._taking.get(resource)
        if task is None:
            task = self._taking[resource] = asyncio.ensure_future(self._take(resource))
            task.add_done_callback(lambda _: self._taking.pop(resource, None))
        return task

    async def _take(self, resource: str) -> None:
        good_after = self.fencings
        try:
            lease = await self._coordinator.hold(resource, self._clock.monotonic() + WAIT_S)
        except NoLeader:
            return  # Whoever waits has a deadline of its own, and asks again before it.
        if self._wanted(resource):
            self._held[resource] = _Held(lease, good_after)
        else:
            await lease.release()

    async def is_good(self, resource: str, fencing: int) -> bool:
        """Whether this node holds a lease that was taken, or verified, after a fencing.

        Raises:
            Unavailable: it would have to be verified, and the coordinator can't be asked.
        """
        if not self.holds(resource):
            return False
        held = self._held[resource]
        if held.good_after >= fencing:
            return True
        async with held.lock:
            if held.good_after < fencing:
                good_after = self.fencings
                if await held.lease.verify():
                    held.good_after = good_after
        return held.good_after >= fencing and self.holds(resource)

    async def release(self, resource: str) -> None:
        """Let go of a lease, if it is held."""
        held = self._held.pop(resource, None)
        if held is not None:
            await held.lease.release()

    async def close(self) -> None:
        """Wait for nothing more, and let go of everything."""
        taking = list(self._taking.values())
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        await asyncio.gather(*(self.release(resource) for resource in list(self._held)))

"""Wake-ups: each put wakes the processor, at once or at the end of a short delay.

The first put wakes the processor at once. Puts that follow within the delay share one more wake-up at its end, the
trailing edge. It comes after the last of them, so none of them waits for the poll::

    puts      |  || |   |                 |
    wake-ups  |        |   |              |
              └ delay ─┘

A wake-up may get lost all the same, so the processor also polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from broker.clock import Clock
from broker.coordination.ports import Coordinator

CLOSE_S: Final = 1.0
FULL: Final = "full:"
"""The prefix of a subscription in a wake-up that asks for a full scan."""


class Wakeups:
    """Tells all processes of a rowlog that a subscription has new messages."""

    def __init__(self, rowlog: str, clock: Clock, coordinator: Coordinator | None) -> None:
        """Use hints of ``coordinator``, if there is one, to tell other processes."""
        self._rowlog = rowlog
        self._clock = clock
        self._coordinator = coordinator
        self._local: dict[str, list[Callable[[], None]]] = {}
        self._told: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def hint(self, name: str) -> str:
        """Return the name of a hint."""
        return f"rowlog-{quote(self._rowlog, safe='')}-{quote(name, safe='')}"

    def listen(self, subscription: str, woken: Callable[[], None]) -> Callable[[], None]:
        """Call ``woken`` at each wake-up of a subscription. The returned function ends that."""
        listening = self._local.get(subscription)
        if listening is None:
            listening = self._local[subscription] = []
            if self._coordinator is not None:  # Once: it can't stop listening to a hint.
                tell = self._telling(subscription)
                self._coordinator.on_hint(self.hint(f"wake-{subscription}"), tell)
        listening.append(woken)
        return lambda: listening.remove(woken) if woken in listening else None

    def _telling(self, subscription: str) -> Callable[[], None]:
        def tell() -> None:
            for woken in list(self._local.get(subscription, ())):
                woken()

        return tell

    def wake_for_all(self, subscription: str) -> None:
        """Ask for a full scan of a subscription's index: old entries were added."""
        self.wake(FULL + subscription, 0)

    def wake(self, subscription: str, delay_ms: int) -> None:
        """Wake the processor of a subscription: a local one now, one of another process soon."""
        self._telling(subscription)()
        if self._coordinator is None:
            return
        if subscription in self._told:
            self._again.add(subscription)
            return
        self._told[subscription] = asyncio.create_task(self._tell(subscription, delay_ms / 1000))

    async def _tell(self, subscription: str, delay_s: float) -> None:
        assert self._coordinator is not None
        what = self.hint(f"wake-{subscription}")
        self._again.add(subscription)
        try:
            while subscription in self._again:
                self._again.discard(subscription)
                await self._coordinator.hint(what)
                await self._clock.sleep(delay_s)
        finally:
            # In the step of the last look: a later put must begin a task of its own.
            del self._told[subscription]

    async def close(self) -> None:
        """Wait until all wake-ups are sent, for CLOSE_S at most."""
        if not self._told:
            return
        _, late = await asyncio.wait(list(self._told.values()), timeout=CLOSE_S)
        for task in late:
            task.cancel()

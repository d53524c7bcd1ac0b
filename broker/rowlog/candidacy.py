"""The candidacies of one process: for which resources it is a candidate, and the processors of each that it leads.

::

    one for all (the default)    rowlog/<id>.all         one elected process processes every subscription
    spread                       rowlog/<id>.of.<sub>    of the live nodes, the one that scores best for a subscription
                                                         is the only candidate for it
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from broker import logs
from broker.clock import Clock
from broker.coordination.ports import Membership
from broker.errors import BrokerError, Fenced
from broker.rowlog.election import Elections, Leading
from broker.rowlog.processor import Means, Processor
from broker.rowlog.setup import Setup, Subscription

log = logs.get_logger()

LOOK_S: Final = 5.0
"""How often the setup is read while no change is announced."""
PAUSE_S_FIRST: Final = 0.2
PAUSE_S_MAX: Final = 30.0
"""The first and the longest pause before a processor that failed by a bug is begun again."""


def best_for(subscription: str, instances: Iterable[int]) -> int | None:
    """Return which instance should process a subscription, by rendezvous hashing."""

    def score(instance: int) -> bytes:
        return hashlib.blake2b(b"%d/%b" % (instance, subscription.encode())).digest()

    return max(instances, key=score, default=None)


class Processing:
    """Candidates and processors of one process."""

    def __init__(
        self,
        means: Means,
        elections: Elections,
        clock: Clock,
        membership: Callable[[], Membership | None],
        maintain: Callable[[Leading], Awaitable[None]],
    ) -> None:
        """Be no candidate yet. ``maintain`` is run by the process that is elected for it."""
        self._means = means
        self._meta = means.tools.meta
        self._rowlog = means.tools.rowlog
        self._elections = elections
        self._clock = clock
        self._membership = membership
        self._maintain = maintain
        self._candidates: dict[str, asyncio.Task[None]] = {}
        self.processors: dict[str, Processor] = {}
        """The processors that run here, by subscription."""
        self._changed = asyncio.Event()
        self._meta.changed.append(lambda _: self._changed.set())

    def look_again(self) -> None:
        """Decide again which processors should run: the members or the setup changed."""
        self._changed.set()

    async def run(self) -> None:
        """Process until cancelled."""
        try:
            while True:
                self._changed.clear()
                try:
                    wanted = self._wanted(await self._meta.setup())
                except BrokerError as error:
                    log.warning("rowlog's setup can't be read", reason=str(error))
                    await self._clock.sleep(LOOK_S)
                    continue
                for resource in self._candidates.keys() - wanted:
                    await _ended(self._candidates.pop(resource))
                for resource in [key for key, each in self._candidates.items() if each.done()]:
                    log.error("rowlog candidacy ended", resource=resource)
                    del self._candidates[resource]
                for resource in wanted - self._candidates.keys():
                    self._candidates[resource] = asyncio.create_task(
                        self._elections.lead(resource, self._lead)
                    )
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()
        finally:
            for task in self._candidates.values():
                task.cancel()
            await asyncio.gather(*self._candidates.values(), return_exceptions=True)

    def _wanted(self, setup: Setup) -> set[str]:
        if not setup.settings.spread:
            return {f"{self._rowlog}.all"}
        membership = self._membership()
        if membership is None:
            return {self._of(each.id) for each in setup.current}
        nodes, me = membership.members.nodes, membership.me.instance
        return {self._of(each.id) for each in setup.current if best_for(each.id, nodes) == me}

    def _keepers(self, setup: Setup) -> set[str]:
        first = min((each.id for each in setup.current), default="")
        return {f"{self._rowlog}.all", self._of(first)}

    def _of(self, subscription: str) -> str:
        return f"{self._rowlog}.of.{quote(subscription, safe='')}"

    async def _lead(self, leading: Leading) -> None:
        """Run the processors of a resource, as the setup lists them. Raises Fenced."""
        running: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        keeping = asyncio.ensure_future(self._keep(leading))
        self._means.tools.figures.add("leads")
        try:
            while True:
                setup = await self._meta.setup()
                wanted = {
                    each.id: each
                    for each in setup.current
                    if not each.paused
                    and leading.resource in {self._of(each.id), f"{self._rowlog}.all"}
                }
                for name in [*running]:
                    if running[name][0] != wanted.get(name):
                        await _ended(running.pop(name)[1])
                        self.processors.pop(name, None)
                for name in wanted.keys() - running.keys():
                    processing = self._process(wanted[name], leading)
                    running[name] = (wanted[name], asyncio.create_task(processing))
                await self._look([keeping, *(task for _, task in running.values())])
        finally:
            self._means.tools.figures.add("leads", by=-1)
            tasks = [keeping, *(task for _, task in running.values())]
            for name in running:
                self.processors.pop(name, None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _process(self, subscription: Subscription, leading: Leading) -> None:
        """Run the processor of one subscription until cancelled. Begin it again after a bug. Raises Fenced."""
        pause_s = PAUSE_S_FIRST
        while True:
            processor = Processor(self._means, subscription, leading)
            self.processors[subscription.id] = processor
            began = self._clock.monotonic()
            try:
                await processor.run()
            except Fenced:
                raise
            except Exception:  # A bug at one subscription must not hold up the others.
                log.exception("rowlog processor failed", subscription=subscription.id)
            if self._clock.monotonic() - began > PAUSE_S_MAX:
                pause_s = PAUSE_S_FIRST
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _look(self, running: list[asyncio.Task[None]]) -> None:
        """Wait for a change of the setup. Raises the error of a task that failed."""
        changed = asyncio.ensure_future(self._changed_setup())
        try:
            done, _ = await asyncio.wait(
                [changed, *running], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                await task
        finally:
            changed.cancel()

    async def _changed_setup(self) -> None:
        told = asyncio.Event()

        def tell(_: Setup) -> None:
            told.set()

        self._meta.changed.append(tell)
        try:
            await told.wait()
        finally:
            self._meta.changed.remove(tell)

    async def _keep(self, leading: Leading) -> None:
        """Maintain the whole rowlog, in the process that is elected for it.

        In a spread rowlog it is the process that has the first subscription.
        """
        while leading.resource not in self._keepers(await self._meta.setup()):
            await self._clock.sleep(LOOK_S)
        await self._maintain(leading)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

"""The election of processors: a lease of the coordinator proposes one, the epoch in the index table decides.

It works as for topics: a candidate waits for the lease, then raises the epoch, then begins to work. A processor without
contact to the coordinator begins no new message, since its lease may be over. It still marks the messages that it has
begun. A fenced processor releases its lease and becomes a candidate again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from broker import logs
from broker.clock import Clock
from broker.coordination.ports import Contact, Coordinator, Lease
from broker.errors import BrokerError, Fenced, NoLeader
from broker.rowlog.meta import Meta
from broker.rowlog.row_table import TableError

log = logs.get_logger()

WAIT_S: Final = 30.0
PAUSE_S: Final = 0.2


class Leading:
    """The right to process, in an epoch, for as long as the lease is good."""

    def __init__(self, resource: str, epoch: int, lease: Lease, elections: Elections) -> None:
        """Lead ``resource``."""
        self.resource = resource
        self.epoch = epoch
        self._lease = lease
        self._elections = elections

    def may_begin(self) -> bool:
        """Return whether new work may begin: the lease is valid, and the coordinator answers."""
        return self._lease.valid and self._elections.coordinator.contact is Contact.CONNECTED

    async def until_it_may(self) -> None:
        """Wait until new work may begin."""
        while not self.may_begin():
            self._elections.moved.clear()
            # No event announces that the coordinator answers no more, so this looks again.
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._elections.moved.wait()

    async def check(self, meta: Meta) -> None:
        """Raise Fenced if a later epoch leads. Raises TableError."""
        epoch = await meta.epoch(self.resource)
        if epoch > self.epoch:
            raise Fenced(f"Epoch {epoch} processes '{self.resource}'; this one has {self.epoch}.")


class Elections:
    """The elections that one process takes part in, with one session."""

    def __init__(self, coordinator: Coordinator, meta: Meta, clock: Clock) -> None:
        """Be no candidate yet."""
        self.coordinator = coordinator
        self.moved = asyncio.Event()
        self._meta = meta
        self._clock = clock
        coordinator.on_contact(lambda _: self.moved.set())

    async def lead(self, resource: str, work: Callable[[Leading], Awaitable[None]]) -> None:
        """Be a candidate until cancelled. Run ``work`` while elected; it is cancelled when the lease ends."""
        while True:
            try:
                await self._lead_once(resource, work)
            except NoLeader:
                continue
            except (BrokerError, TableError) as error:
                log.info("rowlog processor stops", resource=resource, reason=str(error))
            except Exception:  # A bug is logged, and must not end the candidacy.
                log.exception("rowlog processor failed", resource=resource)
            await self._clock.sleep(PAUSE_S)

    async def _lead_once(self, resource: str, work: Callable[[Leading], Awaitable[None]]) -> None:
        deadline = self._clock.monotonic() + WAIT_S
        lease = await self.coordinator.acquire(f"rowlog/{quote(resource, safe='')}", deadline)
        try:
            epoch = await self._meta.raise_epoch(resource, secrets.token_hex(8))
            log.info("rowlog processor begins", resource=resource, epoch=epoch)
            working = asyncio.ensure_future(work(Leading(resource, epoch, lease, self)))
            try:
                await asyncio.wait([working, lease.lost], return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    await working
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        finally:
            await lease.release()

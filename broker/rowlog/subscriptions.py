"""Change subscriptions, settings and shards: the setup, and the messages that a change affects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from broker.coordination.ports import Coordinator
from broker.errors import NotFound
from broker.rowlog import execution_state
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import Gone
from broker.rowlog.index import Index
from broker.rowlog.meta import Meta
from broker.rowlog.repair import ROWS, Repair
from broker.rowlog.rows import Rows
from broker.rowlog.setup import Settings, Setup, Subscription, changed_settings
from broker.rowlog.wakeups import Wakeups


class Subscribing:
    """Changes the setup of one rowlog."""

    def __init__(  # noqa: PLR0913, PLR0917 - The parts of a rowlog.
        self,
        rowlog: str,
        messages: Rows,
        meta: Meta,
        entries: Entries,
        index: Index,
        repair: Repair,
        wakeups: Wakeups,
        coordinator: Coordinator | None,
    ) -> None:
        """Use the parts of a rowlog."""
        self.id = rowlog
        self.messages = messages
        self.meta = meta
        self._entries = entries
        self._index = index
        self.repair = repair
        self.wakeups = wakeups
        self._coordinator = coordinator
        self._draining: set[int] = set()

    async def subscribe(
        self, subscription: Subscription, *, since: Literal["now", "open"] = "now"
    ) -> None:
        """Add a subscription, or change the one of its id; return when every writer knows it.

        Args:
            subscription: the subscription.
            since: "now": it gets messages put from now on. "open": it also gets messages that are not finished, and
                were not put for it.

        Raises:
            BadName, BadRequest: it can't be as it is given.
            TableError, Unavailable, OutcomeUnknown: the table does not answer. The change may have been made in part,
                and the same call may be repeated.
        """
        setup = await self._change(lambda setup: setup.with_subscription(subscription))
        if since == "open":
            await self._open_for(subscription, setup)

    async def _open_for(self, subscription: Subscription, setup: Setup) -> None:
        """Open the messages of others for a subscription. A call that failed may be repeated."""
        start, name = b"", subscription.id
        while rows := await self.messages.sweep(start, ROWS):
            for row, found in rows:
                for each in found or ():
                    data = (await self.messages.data(row, [each.id])).get(each.id, b"")
                    if not subscription.filter.takes(row, data):
                        continue
                    whole = each._replace(data=data)
                    if each.state.is_open(
                        name
                    ):  # An earlier call may have failed before its last step.
                        await self._entries.add(row, whole, [name])
                    with suppress(Gone):
                        await self._entries.reopened(
                            row,
                            whole,
                            lambda now: execution_state.added(now, subscription, setup),
                        )
            start = rows[-1][0] + b"\0"
        self.wakeups.wake_for_all(name)

    async def unsubscribe(self, name: str) -> int:
        """Remove a subscription and its messages; return how many were not done for it. Raises NotFound."""
        there = (await self.meta.fresh()).named(name)
        if there is None:
            raise NotFound(f"Rowlog '{self.id}' has no subscription '{name}'.")
        await self._change(lambda setup: setup.with_subscription(replace(there, removing=True)))
        count = await self.repair.purge(name)
        await self._change(lambda setup: setup.without_subscription(name))
        return count

    async def pause(self, name: str, *, paused: bool = True) -> None:
        """Stop or resume the processing of a subscription. Puts go on. Raises NotFound."""

        def change(setup: Setup) -> Setup:
            there = setup.named(name)
            if there is None:
                raise NotFound(f"Rowlog '{self.id}' has no subscription '{name}'.")
            return setup.with_subscription(replace(there, paused=paused))

        await self._change(change)

    async def change_settings(self, **changes: Any) -> Settings:
        """Change settings by name; return all of them. Raises BadRequest."""
        made = await self._change(
            lambda setup: replace(setup, settings=changed_settings(setup.settings, changes))
        )
        return made.settings

    async def reshard(self, shards: int) -> None:
        """Change the number of shards. New entries use it; old shards are read until they are empty."""
        await self._change(lambda setup: setup.with_shards(shards))

    async def drop_drained(self) -> None:
        """Remove empty shards from the setup that were draining at the call before, too. Raises TableError.

        A shard that began to drain just now may still get entries: a writer uses the setup that it read last.
        """
        before = self._draining
        self._draining = {shard.id for shard in (await self.meta.fresh()).shards if shard.draining}
        for number in before & self._draining:
            if not await self._index.all(number, b"", 1):
                await self._change(lambda setup: setup.without_shard(number))  # noqa: B023 - Called at once.

    async def _change(self, change: Callable[[Setup], Setup]) -> Setup:
        """Change the setup, and return it once every process knows it."""
        made = await self.meta.change(change)
        if self._coordinator is not None:
            await self._coordinator.hint(self.wakeups.hint("setup"))
        await self.meta.settle(made)
        return made

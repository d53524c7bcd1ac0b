"""Open messages again, and bury them, while processors of other processes read the index.

An entry and its message change in two steps, and a processor may read the row between them. So an entry that may have
been removed by mistake is added once more:

* ``reopened`` adds entries before it changes the state: a crash leaves a stale entry at most. It adds them again
  afterwards, since a processor that read the row in between took the message for dead, and buried it.
* ``bury`` removes the open entry of a dead message, and another process may revive that message at the same time. So
  it reads the state afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.rowlog.cell_keys import Entry
from broker.rowlog.execution_state import State
from broker.rowlog.index import Index, entries_for
from broker.rowlog.meta import Meta
from broker.rowlog.ring import Ring
from broker.rowlog.rows import Decide, Found, Rows


class Reopened(NamedTuple):
    """The new state of a message, and the subscriptions for which it was opened."""

    state: State
    names: list[str]


@dataclass(frozen=True)
class Entries:
    """The entries of messages, in the index and in the list of dead letters."""

    meta: Meta
    messages: Rows
    index: Index
    wake_for_all: Callable[[str], None]
    """Asks for a full scan of a subscription's index."""

    async def of(self, row: bytes, found: Found, names: Collection[str]) -> list[Entry]:
        """Return the entries that a message has, if it was put under the current shards."""
        setup = await self.meta.setup()
        return entries_for(Ring(setup.writable), names, row, found.id, found.data)

    async def reopened(self, row: bytes, found: Found, decide: Decide) -> Reopened:
        """Change a state and its entries. The caller wakes the processors.

        Raises what ``decide`` raises, and the errors of ``Rows.change``.
        """
        before = found.state
        await self.add(row, found, _opened(before, decide(before)))
        after = await self.messages.change(row, found.id, decide, found.raw)
        names = _opened(before, after)
        await self.add(row, found, names)
        await self._list(row, found, after)
        return Reopened(after, names)

    async def add(self, row: bytes, found: Found, names: Collection[str]) -> None:
        """Add the open entries of a message."""
        if names:
            await self.index.add(await self.of(row, found, names))

    async def _list(self, row: bytes, found: Found, after: State) -> None:
        """List the parts that died, and unlist those that are not dead any more."""
        before = set(found.state.dead)
        await self.index.bury(await self.of(row, found, set(after.dead) - before))
        shards = (await self.meta.setup()).shards
        gone = await self.of(row, found, before - set(after.dead))
        await self.index.unbury(
            [entry._replace(shard=shard.id) for entry in gone for shard in shards]
        )

    async def bury(self, row: bytes, entries: Sequence[Entry]) -> None:
        """List dead messages of a row, and remove their open entries unless another has revived them."""
        await self.index.bury(entries)
        for entry in entries:
            found = await self.messages.one(row, entry.message)
            if found is not None and found.state.is_open(entry.subscription):
                await self.index.add([entry])
                self.wake_for_all(entry.subscription)


def _opened(before: State, after: State) -> list[str]:
    return [name for name in after.parts if after.is_open(name) and not before.is_open(name)]

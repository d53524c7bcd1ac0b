"""The reserved rows of an index table: the setup and epochs. The setup and epochs change by compare-and-set.

::

    ff "setup"                messages:msg    the setup, as JSON (setup.py)
    ff "epochs"               messages:msg    int64: the last epoch that was given out
    ff "epoch/" resource      messages:msg    epoch int64 | name of its owner, UTF-8
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.clock import Clock
from broker.errors import NotFound, OutcomeUnknown, Unavailable
from broker.rowlog import setup as setups
from broker.rowlog.cell_keys import INDEX_COLUMN, meta_key
from broker.rowlog.row_table import NotWritten, RowTable, TableError
from broker.rowlog.setup import Setup

SETUP: Final = "setup"
REFRESH_S: Final = 1.0
"""How old the setup may be that a put uses, and any other step while the setup can be read."""
KNOWN_S: Final = 1.25
"""How long after a change every process knows it. It is longer than REFRESH_S: clocks don't run at quite one rate."""
ATTEMPTS: Final = 20
_epoch = struct.Struct(">q")


class Meta:
    """The reserved rows of one rowlog."""

    def __init__(self, rows: RowTable, table: bytes, clock: Clock) -> None:
        """Read nothing yet."""
        self._rows = rows
        self._table = table
        self._clock = clock
        self._setup: Setup | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self.changed: list[Callable[[Setup], None]] = []
        """Called with each setup read that has a higher version than the one before."""

    async def _get(self, name: str) -> bytes:
        key = meta_key(name)
        found = await self._rows.get(self._table, [key], [INDEX_COLUMN])
        return found.get(key, {}).get(INDEX_COLUMN, b"")

    async def _swap(self, name: str, expected: bytes, value: bytes) -> bool:
        """Compare and set, and return whether the value is set. Raises TableError: that is not known."""
        try:
            done = await self._rows.check_and_put(
                self._table, meta_key(name), INDEX_COLUMN, expected, value
            )
        except NotWritten:
            raise
        except TableError:
            done = False
        return done or await self._get(name) == value

    # The setup.

    async def setup(self) -> Setup:
        """Return the setup: at most REFRESH_S old, or the last one read if it can't be read now.

        Raises:
            NotFound: there is no such rowlog.
            Unavailable: this process has never read it, and can't read it now.
        """
        try:
            return await self.young()
        except Unavailable:
            if self._setup is None:
                raise
            return self._setup

    async def young(self) -> Setup:
        """Return the setup, at most REFRESH_S old. Raises NotFound, Unavailable."""
        known = self._young()
        if known is not None:
            return known
        async with self._reading:
            return self._young() or await self._read()  # Another call may have read it meanwhile.

    def _young(self) -> Setup | None:
        is_young = self._clock.monotonic() - self._read_at < REFRESH_S
        return self._setup if is_young else None

    async def fresh(self) -> Setup:
        """Return the setup as it is now. Raises NotFound, Unavailable."""
        async with self._reading:
            return await self._read()

    async def _read(self) -> Setup:
        began = self._clock.monotonic()
        try:
            raw = await self._get(SETUP)
        except TableError as error:
            raise Unavailable(f"The rowlog's setup can't be read: {error}.") from error
        if not raw:
            raise self._not_found()
        found = setups.decode(raw)
        known, self._read_at = self._setup, began
        if known is None or found.version > known.version:
            self._setup = found
            for tell in self.changed:
                tell(found)
        return found

    async def find(self) -> Setup:
        """Return the setup as it is now. Raises NotFound, also if there is no such table; Unavailable."""
        try:
            tables = await self._rows.tables()
        except TableError as error:
            raise Unavailable(f"The tables can't be listed: {error}.") from error
        if self._table not in tables:
            raise self._not_found()
        return await self.fresh()

    def _not_found(self) -> NotFound:
        name = self._table.decode(errors="replace")
        return NotFound(f"There is no rowlog in the table {name}; make it first.")

    def forget(self) -> None:
        """Have the next call of ``setup`` read it again."""
        self._read_at = float("-inf")

    async def make(self, setup: Setup) -> bool:
        """Write the first setup. Return False if there is one. Raises OutcomeUnknown."""
        try:
            return await self._swap(SETUP, b"", setups.encode(setup))
        except TableError as error:
            raise OutcomeUnknown(f"Whether the rowlog was made is not known: {error}.") from error

    async def change(self, change: Callable[[Setup], Setup]) -> Setup:
        """Change the setup by compare-and-set; return the new one. ``settle`` waits until every process knows it.

        Raises Unavailable, and the errors of ``change``.
        """
        for _ in range(ATTEMPTS):
            raw = await self._get(SETUP)
            known = setups.decode(raw) if raw else await self.fresh()
            wanted = change(known)
            if wanted == known:
                return await self.fresh()  # This process may have read an earlier one.
            settled = wanted.settled and not known.settled
            wanted = replace(wanted, version=known.version + 1, settled=settled)
            if await self._swap(SETUP, raw, setups.encode(wanted)):
                return await self.fresh()
        raise Unavailable("The rowlog's setup changes too often; try again.")

    async def settle(self, setup: Setup) -> None:
        """Return once every process knows a changed setup: no put that begins later uses an earlier one.

        Raises TableError, Unavailable.
        """
        if setup.settled:
            return
        await self._clock.sleep(KNOWN_S)
        # If it was changed meanwhile, that call settles it.
        await self.change(
            lambda now: replace(now, settled=True) if now.version == setup.version else now
        )

    # Epochs.

    async def epoch(self, resource: str) -> int:
        """Return the highest epoch of a resource; 0: none yet."""
        raw = await self._get(f"epoch/{resource}")
        return int(_epoch.unpack_from(raw)[0]) if raw else 0

    async def raise_epoch(self, resource: str, who: str) -> int:
        """Take the next epoch for a resource, and return it. Raises TableError.

        All resources of a rowlog share one counter, since a subscription may pass from one resource to another.
        """
        epoch = await self._rows.increment(self._table, meta_key("epochs"), INDEX_COLUMN)
        name = f"epoch/{resource}"
        while True:
            raw = await self._get(name)
            if raw and _epoch.unpack_from(raw)[0] >= epoch:
                return epoch  # A later epoch is there: this one is fenced already.
            if await self._swap(name, raw, _epoch.pack(epoch) + who.encode()):
                return epoch

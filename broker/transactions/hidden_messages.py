"""The operations that make hidden messages visible: reset, and truncation of the invalid list.

A snapshot hides a transaction that is in progress or invalid. If the service forgets the transaction, every later snapshot
shows its messages: those that were never committed, and those whose client rolled them back in part. So these operations
are off, unless the configuration of the node that takes the request allows them. Each node checks its own clients:
requests that another node forwards were checked there.

Pruning forgets only transactions without messages (prune.py). At a node with topics it needs no permission. A service
without these topics gets a truncation from the broker that has them, and can't check it. So it has a permission of its
own. With it alone, the service forgets only the given transactions, and only if they are past their longest life and
below all in progress. Of other transactions a broker never knows that no message is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from broker import logs
from broker.errors import BrokerError, NotAllowed, StorageCorrupt
from broker.model import Snapshot

RESET: Final = "reset"

log = logs.get_logger()


class SnapshotSource(Protocol):
    """The source of the snapshot that says which messages are hidden."""

    async def snapshot(self, deadline: float | None = None) -> Snapshot:
        """Return a snapshot as of now. Raises BrokerError."""


SettledBelow = Callable[[Snapshot], int]
"""Returns the pointer below which every invalid transaction of a snapshot is settled (settlement.py)."""


class Unhiding:
    """Refuses such an operation, or logs it with its caller."""

    def __init__(
        self, service: SnapshotSource, *, allowed: bool, prunes: SettledBelow | None = None
    ) -> None:
        """Keep the service and the permissions. Without ``prunes`` no broker elsewhere may prune."""
        self._service = service
        self._allowed = allowed
        self._prunes = None if allowed else prunes

    @property
    def asks_for_ids(self) -> bool:
        """Return whether the ids of a truncation decide."""
        return self._prunes is not None

    async def check(
        self,
        operation: str,
        caller: str,
        request_id: str = "",
        *,
        ids: Collection[int] = (),
        deadline: float | None = None,
    ) -> None:
        """Return if the operation is allowed, and log who asked for it and how much it may show.

        ``ids`` are those of a truncation, if they decide.

        Raises:
            NotAllowed: the configuration does not allow it. The message says how much it may show.
            BrokerError: it is allowed, but the service does not answer.
        """
        if self._prunes is not None and ids:
            snapshot = await self._service.snapshot(deadline)
            if max(ids) < self._prunes(snapshot):
                return
        if not self._allowed:
            raise NotAllowed(
                f"The {operation} of transactions is off, because it shows messages that consumers must not see"
                f"{await self._told(deadline)}. To allow it until the next start, start the broker with "
                "--transactions-reset-allowed true. To forget only transactions without messages, use broker tx prune."
            )
        hidden = await self._hidden(operation, deadline)
        log.warning(
            "hidden messages become visible",
            operation=operation,
            caller=caller,
            request_id=request_id,
            in_progress=None if hidden is None else len(hidden.in_progress),
            invalid=None if hidden is None else len(hidden.invalids),
        )

    async def _hidden(self, operation: str, deadline: float | None) -> Snapshot | None:
        """Return the snapshot that tells what is hidden; None: a damaged journal is reset, and does not tell it."""
        try:
            return await self._service.snapshot(deadline)
        except StorageCorrupt:
            if operation != RESET:
                raise
            return None

    async def _told(self, deadline: float | None) -> str:
        try:
            hidden = await self._service.snapshot(deadline)
        except BrokerError:
            return ""
        return (
            f": now up to {len(hidden.in_progress)} write pointers in progress and {len(hidden.invalids)} "
            "invalid ones are hidden"
        )

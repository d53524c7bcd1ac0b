"""The operations that make hidden messages visible: reset, and truncation of the invalid list.

A snapshot hides a transaction that is in progress or invalid. If the service forgets the transaction, every later snapshot
shows its messages: those that were never committed, and those whose client rolled them back in part. So these operations
are off, unless the configuration of the node that takes the request allows them. Each node checks its own clients:
requests that another node forwards were checked there. Pruning needs no permission, because it forgets only
transactions without messages (prune.py).
"""

from __future__ import annotations

from typing import Final, Protocol

from broker import logs
from broker.errors import BrokerError, NotAllowed
from broker.model import Snapshot

KEY: Final = "transactions.transactions_reset_allowed"

log = logs.get_logger()


class SnapshotSource(Protocol):
    """The source of the snapshot that says which messages are hidden."""

    async def snapshot(self) -> Snapshot:
        """Return a snapshot as of now. Raises BrokerError."""


class Unhiding:
    """Refuses such an operation, or logs it with its caller."""

    def __init__(self, service: SnapshotSource, *, allowed: bool) -> None:
        """Keep the service and the permission."""
        self._service = service
        self._allowed = allowed

    async def check(self, operation: str, caller: str, request_id: str = "") -> None:
        """Return if the operation is allowed, and log who asked for it and how much it may show.

        Raises:
            NotAllowed: the configuration does not allow it. The message says how much it may show.
            BrokerError: it is allowed, but the service does not answer.
        """
        if not self._allowed:
            raise NotAllowed(
                f"The {operation} of transactions is off, because it shows messages that consumers must not see"
                f"{await self._told()}. To allow it until the next start, start the broker with "
                "--transactions-reset-allowed true. To forget only transactions without messages, use broker tx prune."
            )
        hidden = await self._service.snapshot()
        log.warning(
            "hidden messages become visible",
            operation=operation,
            caller=caller,
            request_id=request_id,
            in_progress=len(hidden.in_progress),
            invalid=len(hidden.invalids),
        )

    async def _told(self) -> str:
        try:
            hidden = await self._service.snapshot()
        except BrokerError:
            return ""
        return (
            f": now up to {len(hidden.in_progress)} write pointers in progress and {len(hidden.invalids)} "
            "invalid ones are hidden"
        )

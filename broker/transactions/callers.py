"""The callers of transactions in progress, so that one of them can't take all places.

They are known to the node that began the transactions, as long as it leads the service. No edit has them.
"""

from __future__ import annotations

from broker.shares import has_share
from broker.transactions import manager
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState


class Callers:
    """The callers of transactions that began on this node: each a principal, an address, or a network of IPv6."""

    def __init__(self, settings: TransactionSettings) -> None:
        """Know no caller."""
        self._settings = settings
        self._by_id: dict[int, str] = {}
        """By the id of the transaction. Some of these transactions have ended."""

    def of(self, transaction: int) -> str:
        """Return the caller that began a transaction; empty if it is not known."""
        return self._by_id.get(transaction, "")

    def note(self, state: ServiceState, transaction: int, caller: str) -> None:
        """Keep the caller of a transaction that begins."""
        if not caller:
            return
        if len(self._by_id) >= 2 * self._settings.in_progress_max:
            kept = (*state.in_progress, *state.ended)
            self._by_id = {each: self._by_id[each] for each in kept if self.of(each)}
        self._by_id[transaction] = caller

    def count(self, state: ServiceState, caller: str) -> int:
        """Return how many transactions and checkpoints of a caller are in progress; 0 while no caller can have many."""
        taken = len(state.pointers)
        if not caller or has_share(taken, taken, manager.places(self._settings, long=True)):
            return 0
        found = state.in_progress.values()
        return sum(len(each.pointers) for each in found if self.of(each.id) == caller)

    def held(self, state: ServiceState, caller: str) -> tuple[int, int]:
        """Return how many transactions of a caller are in progress, and how many of its pointers are invalid."""
        in_progress = sum(self.of(each) == caller for each in state.in_progress)
        ended = (
            1 + len(each.checkpoints)
            for transaction, each in state.ended.items()
            if self.of(transaction) == caller
        )
        return in_progress, sum(ended)

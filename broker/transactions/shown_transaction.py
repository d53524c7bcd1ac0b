"""Show a transaction as values for JSON. Pointers are strings: JavaScript has no numbers of 63 bits."""

from __future__ import annotations

from typing import Any

from broker.errors import NotFound
from broker.transactions.service_state import OpenTransaction, ServiceState


def details_of(each: OpenTransaction) -> dict[str, Any]:
    """Return a transaction in progress, as values for JSON."""
    return {
        "id": str(each.id),
        "type": "long" if each.long else "short",
        "started_ms": each.started_ms,
        "expires_ms": each.expires_ms,
        "client": each.client,
        "name": each.name,
        "checkpoints": [str(pointer) for pointer in each.checkpoints],
    }


def shown(state: ServiceState, transaction_id: int) -> dict[str, Any]:
    """Return a transaction's state and details. Raises NotFound."""
    found = state.in_progress.get(transaction_id)
    if found is not None:
        name = "in_progress" if found.changes is None else "committing"
        return {"state": name, **details_of(found), "changes": len(found.changes or ())}
    if state.is_invalid(transaction_id):
        ended = state.ended.get(transaction_id)
        more: dict[str, Any] = {}
        if ended is not None:
            more = {
                "type": "long" if ended.long else "short",
                "checkpoints": [str(pointer) for pointer in ended.checkpoints],
            }
        return {"state": "invalid", "id": str(transaction_id), **more}
    raise NotFound(f"Transaction {transaction_id} is not known: it ended long ago, or never began.")

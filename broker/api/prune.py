"""Handlers of pruning: show which invalid transactions the service may forget now, and let it forget them."""

from __future__ import annotations

from broker.api.asked import shown_id
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import ROW_ID_BYTES, timestamp_of
from broker.moments import rfc3339
from broker.operations.parameters import THROUGH
from broker.operations.replies import Pruned, PrunePlan, Unpassed
from broker.transactions.prune import Pruning, PruningPlan
from broker.wire.json_numbers import shown_long


class PruningApi:
    """The handlers of pruning. Any node answers: the facts lie in the records and in the transaction service."""

    def __init__(self, pruning: Pruning) -> None:
        """Keep the pruning service."""
        self._pruning = pruning

    async def prune_plan(self, request: Request) -> Answer:
        """Answer which transactions can be pruned. Change nothing."""
        return json_reply(
            told(await self._pruning.plan(THROUGH.of(request.query), request.deadline))
        )

    async def prune_transactions(self, request: Request) -> Answer:
        """Prune all transactions that may be pruned."""
        plan, removed = await self._pruning.prune(THROUGH.of(request.query), request.deadline)
        return json_reply(Pruned(**told(plan), removed=removed))


def told(plan: PruningPlan) -> PrunePlan:
    """Return a plan as JSON."""
    prunable = plan.prunable
    return PrunePlan(
        invalid=plan.invalid,
        prunable=len(prunable),
        oldest_prunable=str(prunable[0]) if prunable else None,
        newest_prunable=str(prunable[-1]) if prunable else None,
        oldest_left=shown_long(plan.oldest_left),
        reason=reason(plan),
        settled_at=None if plan.settled_ms is None else rfc3339(plan.settled_ms),
        in_progress=shown_long(plan.in_progress),
        unpassed=_unpassed(plan),
    )


def _unpassed(plan: PruningPlan) -> Unpassed | None:
    each = plan.unpassed
    if each is None:
        return None
    page = each.page.ljust(ROW_ID_BYTES, b"\0")
    return Unpassed(
        namespace=each.topic.namespace,
        topic=each.topic.topic,
        generation=each.generation,
        passed_below=str(each.below),
        page=shown_id(page),
        page_time=rfc3339(timestamp_of(page)) if any(page) else None,
    )


def reason(plan: PruningPlan) -> str | None:
    """Return why not more transactions can be pruned; None if none is left."""
    if plan.unpassed is not None:
        name = "/".join(plan.unpassed.topic)
        return (
            f"No sweep has passed topic {name} (generation {plan.unpassed.generation}) since transaction "
            f"{plan.oldest_left} was settled. The node that should lead the topic passes it in one of its next sweeps, at "
            "most an hour after the last one. If it does not, its log says why."
        )
    if plan.in_progress is not None:
        return (
            f"Transaction {plan.in_progress} began before transaction {plan.oldest_left}, and is still in progress. See "
            f"broker tx show {plan.in_progress}."
        )
    if plan.settled_ms is not None:
        return (
            f"Transaction {plan.oldest_left} is younger than the longest life of a transaction plus the margin. It can be "
            f"pruned after {rfc3339(plan.settled_ms)}."
        )
    return None

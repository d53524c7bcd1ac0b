"""The transaction service as a node's own parts call it, on a node that leads the service or not."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from broker.api.routed import OwnService, error_of
from broker.errors import (
    BadRequest,
    BrokerError,
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    RequestError,
    TransactionConflict,
    TransactionFenced,
    TransactionNotInProgress,
    Unavailable,
)
from broker.http.answer import HttpAnswer
from broker.model import Snapshot
from broker.node.transactions import settings_of
from broker.operations.media_types import TEPHRA_SNAPSHOT
from broker.operations.table import OPERATIONS
from broker.transactions.service import Transactions
from broker.transactions.service_calls import CALLS, ServiceCall
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.transacting import PATH

Result = TypeVar("Result")


class Asking:
    """Asks the service of a node as its own parts do, by the names of operations."""

    def __init__(self, cluster: HttpCluster, node: int, deadline_s: float = 30.0) -> None:
        """Ask at a node. While it leads the service, use no other door to it."""
        machine = cluster.machines[node]
        assert machine.ground is not None
        assert machine.ground.topics is not None
        topics = machine.ground.topics
        local = Transactions(topics.leaders, settings_of(machine.config))
        routed = machine.ground.routed(topics, deadline_s)
        self.service = OwnService(local, routed, deadline_s=deadline_s)

    async def start(self, **sent: Any) -> Snapshot:
        snapshot: Snapshot = await self.service.ask(ServiceCall("start_transaction", sent))
        return snapshot

    async def on(self, name: str, of: Snapshot, **sent: Any) -> Any:
        """Ask about a transaction."""
        return await self.service.ask(ServiceCall(f"{name}_transaction", sent, of.transaction_id))

    async def __call__(self, name: str, **sent: Any) -> Any:
        """Ask about all transactions."""
        return await self.service.ask(ServiceCall(f"{name}_transactions", sent))


async def at(cluster: HttpCluster, node: int, work: Coroutine[Any, Any, Result]) -> Result:
    """Do work in a node's process."""
    process = cluster.machines[node].process
    assert process is not None
    return await process.begin(work)


async def call_everything(ask: Asking) -> None:
    begun = await ask.start(client="c", timeout_s=5)
    assert await ask.on("can_commit", begun, changes=[b"k\xff"]) == {}
    checkpoint = await ask.on("checkpoint", begun)
    assert checkpoint.checkpoint_pointers[-1] == checkpoint.write_pointer
    assert (await ask.service.show(begun.transaction_id))["state"] == "committing"
    assert await ask.on("commit", begun, write_pointer=checkpoint.write_pointer) == {}
    assert (await ask.service.snapshot()).is_visible(checkpoint.write_pointer)
    with pytest.raises(TransactionNotInProgress):
        await ask.on("commit", begun)
    older = await ask.start()
    with pytest.raises(BadRequest):
        await ask("truncate", before_ms=1 << 42)
    assert await ask.on("abort", older) == {}
    long = await ask.start(type="long")
    assert long.long
    assert await ask.on("invalidate", long) == {"invalidated": True}
    assert await ask.on("invalidate", long) == {"invalidated": False}
    assert (await ask.service.list(0))["invalid"] == 1
    state = await ask.service.ask(ServiceCall("transactions_snapshot", accept=TEPHRA_SNAPSHOT))
    assert state[:1] == b"\x08"
    assert await ask.service.truncate_invalid([long.transaction_id, 5]) == 1
    assert await ask("truncate", before_ms=1 << 42) == {"removed": 0}
    first, second = await ask.start(), await ask.start()
    await ask.on("can_commit", first, changes=[b"k"])
    await ask.on("commit", first, write_pointer=None)
    with pytest.raises(TransactionConflict):
        await ask.on("can_commit", second, changes=[b"k"])
    with pytest.raises(BadRequest, match="time-out"):
        await ask.start(timeout_s=0)
    assert await ask("reset") == {"in_progress": 1, "invalid": 0}
    with pytest.raises(TransactionNotInProgress):
        await ask.on("commit", second)


def test_each_operation_of_the_service_is_called() -> None:
    led = {each.name for each in OPERATIONS if each.template.startswith(PATH)}
    assert led - {"prune_plan", "prune_transactions"} == CALLS.keys()


@pytest.mark.parametrize("leading", [0, 1])
@on_cluster(nodes=2, topic=False)
async def test_the_service_is_the_same_whether_this_node_leads_it_or_another(
    cluster: HttpCluster, leading: int
) -> None:
    await cluster.lead_all(leading)
    await at(cluster, 1, call_everything(Asking(cluster, 1)))
    assert bool(cluster.forwarded(1, PATH)) == (leading != 1)


@on_cluster(nodes=2, topic=False)
async def test_a_commit_whose_answer_is_lost_is_unknown(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    ask = Asking(cluster, 1)
    begun = await at(cluster, 1, ask.start())
    committing = at(cluster, 1, ask.on("commit", begun))
    with pytest.raises(OutcomeUnknown):
        await cluster.answer_lost(committing, by=1, to=0)
    assert (await at(cluster, 1, ask.service.snapshot())).is_visible(begun.transaction_id)


@on_cluster(nodes=2, topic=False)
async def test_transactions_go_on_when_this_node_becomes_the_leader(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    ask = Asking(cluster, 1)
    begun = await at(cluster, 1, ask.start())
    await cluster.lead_all(1)
    assert begun.transaction_id in (await at(cluster, 1, ask.service.snapshot())).in_progress
    await at(cluster, 1, ask.on("commit", begun))


@on_cluster(nodes=2, topic=False)
async def test_without_a_leader_nothing_is_done(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    cluster.kill_without_successor(0)
    with pytest.raises(NoLeader):
        await at(cluster, 1, Asking(cluster, 1, deadline_s=0.05).start())


@pytest.mark.parametrize(
    ("status", "code", "outcome", "expected"),
    [
        (409, "transaction_conflict", "refused", TransactionConflict),
        (409, "transaction_fenced", "refused", TransactionFenced),
        (503, "no_leader", "refused", NoLeader),
        (503, "not_leader", "refused", Unavailable),
        (503, "overloaded", "refused", Overloaded),
        (400, "something new", "refused", RequestError),
        (503, "something new", "refused", Unavailable),
        (409, "transaction_conflict", "unknown", OutcomeUnknown),
        (500, "", "", OutcomeUnknown),
    ],
)
def test_errors_of_other_nodes(
    status: int, code: str, outcome: str, expected: type[BrokerError]
) -> None:
    headers = {"broker-error": code, "broker-outcome": outcome}
    for body in (b'{"message": "why"}', b"why", b'["why"]'):
        error = error_of(HttpAnswer(status, headers, body))
        assert type(error) is expected
        assert "why" in error.message

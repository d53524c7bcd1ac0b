"""The transaction service as a node's own parts call it, on a node that leads the service or not."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from broker.api.own_service import RoutedTransactions, error_of
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
from broker.node.transactions import settings_of
from broker.transactions.service import Transactions
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.transacting import PATH

Result = TypeVar("Result")


def service_of(cluster: HttpCluster, node: int, deadline_s: float = 30.0) -> RoutedTransactions:
    """Return the service for parts of a node. While the node leads the service, use no other door to it."""
    machine = cluster.machines[node]
    assert machine.ground is not None
    assert machine.ground.topics is not None
    local = Transactions(machine.ground.topics.leaders, settings_of(machine.config))
    return RoutedTransactions(local, machine.ground.routing, deadline_s=deadline_s)


async def at(cluster: HttpCluster, node: int, work: Coroutine[Any, Any, Result]) -> Result:
    """Do work in a node's process."""
    process = cluster.machines[node].process
    assert process is not None
    return await process.begin(work)


async def call_everything(service: RoutedTransactions) -> None:
    begun = await service.start(client="c", timeout_s=5)
    await service.can_commit(begun.transaction_id, [b"k\xff"])
    checkpoint = await service.checkpoint(begun.transaction_id)
    assert checkpoint.checkpoint_pointers[-1] == checkpoint.write_pointer
    await service.commit(begun.transaction_id, checkpoint.write_pointer)
    assert (await service.snapshot()).is_visible(checkpoint.write_pointer)
    with pytest.raises(TransactionNotInProgress):
        await service.commit(begun.transaction_id)
    older = await service.start()
    with pytest.raises(BadRequest):
        await service.truncate_invalid_before(1 << 42)
    await service.abort(older.transaction_id)
    long = await service.start(long=True)
    assert long.long
    assert await service.invalidate(long.transaction_id)
    assert not await service.invalidate(long.transaction_id)
    assert await service.invalid_count() == 1
    assert (await service.tephra_snapshot())[:1] == b"\x08"
    assert await service.truncate_invalid([long.transaction_id, 5]) == 1
    assert await service.truncate_invalid_before(1 << 42) == 0
    first, second = await service.start(), await service.start()
    await service.can_commit(first.transaction_id, [b"k"])
    await service.commit(first.transaction_id)
    with pytest.raises(TransactionConflict):
        await service.can_commit(second.transaction_id, [b"k"])
    with pytest.raises(BadRequest, match="time-out"):
        await service.start(timeout_s=0)
    await service.reset()
    with pytest.raises(TransactionNotInProgress):
        await service.commit(second.transaction_id)


@pytest.mark.parametrize("leading", [0, 1])
@on_cluster(nodes=2, topic=False)
async def test_the_service_is_the_same_whether_this_node_leads_it_or_another(
    cluster: HttpCluster, leading: int
) -> None:
    await cluster.lead_all(leading)
    await at(cluster, 1, call_everything(service_of(cluster, 1)))
    assert bool(cluster.forwarded(1, PATH)) == (leading != 1)


@on_cluster(nodes=2, topic=False)
async def test_a_commit_whose_answer_is_lost_is_unknown(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    service = service_of(cluster, 1)
    begun = await at(cluster, 1, service.start())
    committing = at(cluster, 1, service.commit(begun.transaction_id))
    with pytest.raises(OutcomeUnknown):
        await cluster.answer_lost(committing, by=1, to=0)
    assert (await at(cluster, 1, service.snapshot())).is_visible(begun.transaction_id)


@on_cluster(nodes=2, topic=False)
async def test_transactions_go_on_when_this_node_becomes_the_leader(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    service = service_of(cluster, 1)
    begun = await at(cluster, 1, service.start())
    await cluster.lead_all(1)
    assert begun.transaction_id in (await at(cluster, 1, service.snapshot())).in_progress
    await at(cluster, 1, service.commit(begun.transaction_id))


@on_cluster(nodes=2, topic=False)
async def test_without_a_leader_nothing_is_done(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    cluster.kill_without_successor(0)
    with pytest.raises(NoLeader):
        await at(cluster, 1, service_of(cluster, 1, deadline_s=0.05).start())


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

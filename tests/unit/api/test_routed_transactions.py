"""The transaction service as every node of a cluster has it."""

from collections.abc import AsyncIterator

import pytest

from broker.api.routed_transactions import RoutedTransactions, error_of
from broker.errors import (
    BadRequest,
    BrokerError,
    NoLeader,
    OutcomeUnknown,
    RequestError,
    TransactionConflict,
    TransactionNotInProgress,
    Unavailable,
)
from broker.http.answer import HttpAnswer
from broker.topics.reserved import TRANSACTIONS
from tests.kit.ring import Ring, RingNode, answer_lost, ring_of


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """Two nodes, of which the first leads."""
    async with ring_of(2) as ring:
        yield ring


def of(node: RingNode, deadline_s: float = 30.0) -> RoutedTransactions:
    return RoutedTransactions(node.transactions, node.routing, deadline_s=deadline_s)


async def test_both_nodes_give_the_same_service(ring: Ring) -> None:
    for service in map(of, ring.nodes):
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
    assert ring.nodes[1].forwarded()
    assert not ring.nodes[0].forwarded()


async def test_a_commit_whose_answer_is_lost_is_unknown(ring: Ring) -> None:
    service = of(ring.nodes[1])
    begun = await service.start()
    ring.nodes[1].peers.hooks.append(answer_lost)
    with pytest.raises(OutcomeUnknown):
        await service.commit(begun.transaction_id)
    assert (await service.snapshot()).is_visible(begun.transaction_id)


async def test_it_moves_with_its_leader(ring: Ring) -> None:
    begun = await of(ring.nodes[1]).start()
    await ring.move(1, [TRANSACTIONS])
    for node in ring.nodes:
        assert begun.transaction_id in (await of(node).snapshot()).in_progress
    await of(ring.nodes[0]).commit(begun.transaction_id)


async def test_without_a_leader_nothing_is_done(ring: Ring) -> None:
    ring.leader = -1
    with pytest.raises(NoLeader):
        await of(ring.nodes[1], deadline_s=0.05).start()


@pytest.mark.parametrize(
    ("status", "code", "outcome", "expected"),
    [
        (409, "transaction_conflict", "refused", TransactionConflict),
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

"""The client's calls of the transaction service: their requests, answers and retries."""

import inspect
import json

import pytest

from broker.client import SyncClient, TransactionService
from broker.client.client_request import Reply
from broker.client.sync import SyncTransactionService
from broker.errors import (
    BadRequest,
    NoLeader,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotInProgress,
)
from tests.unit.client.stand_in import OverHttp

UNKNOWN = Reply(500, {"broker-error": "outcome_unknown"}, b"lost")
NO_LEADER = Reply(503, {"broker-error": "no_leader"}, b"none leads")


def answer_json(value):
    return lambda _: Reply(200, {"content-type": "application/json"}, json.dumps(value).encode())


@pytest.mark.parametrize("in_json", [False, True], ids=["thrift", "json"])
async def test_a_transaction_is_started_and_committed(make_client, transport, in_json):
    transport.answer = service = OverHttp(in_json=in_json)
    async with make_client() as client:
        begun = await client.transactions.start()
        assert (begun.transaction_id, begun.read_pointer) == (1001, 1000)
        await client.transactions.can_commit(1001, [b"a", b"\xff"])
        further = await client.transactions.checkpoint(1001)
        assert (further.write_pointer, list(further.checkpoint_pointers)) == (1002, [1002])
        await client.transactions.commit(1001, further.write_pointer)
        seen = await client.transactions.snapshot()
    assert seen.is_visible(1001)
    assert seen.is_visible(1002)
    assert service.rules.committed == [(1003, {b"a", b"\xff"})]


async def test_each_call_sends_its_documented_request(make_client, transport):
    transport.answer = OverHttp()
    async with make_client() as client:
        service = client.transactions
        await service.start()
        await service.start(long=True, timeout_s=60, client="loader")
        await service.can_commit(1001, [b"a"])
        await service.commit(1001)
        await service.abort(1002)
        assert not await service.invalidate(1001)
    sent = [(r.method, r.path.removeprefix("/v1/transactions"), r.body) for r in transport.requests]
    assert sent == [
        ("POST", "", b""),
        ("POST", "", b'{"type": "long", "timeout_s": 60, "client": "loader"}'),
        ("POST", "/1001/can-commit", b'{"changes": ["YQ=="]}'),
        ("POST", "/1001/commit", b""),
        ("POST", "/1002/abort", b""),
        ("POST", "/1001/invalidate", b""),
    ]


async def test_transactions_are_listed_shown_and_truncated(make_client, transport):
    async with make_client() as client:
        service = client.transactions
        counts = {"in_progress_count": 0, "committing": 0, "committed": 0, "invalid": 2}
        counts |= {"read_pointer": "9", "write_pointer": "9", "leader": None, "epoch": None}
        transport.answer = answer_json({"in_progress": [], **counts})
        assert await service.list(limit=5) == {"in_progress": [], **counts}
        transport.answer = answer_json({"id": "7", "state": "invalid"})
        assert (await service.show(7))["state"] == "invalid"
        transport.answer = answer_json({"removed": 2})
        assert await service.truncate(ids=[7, 8]) == 2
        assert await service.truncate(before_ms=9) == 2
        with pytest.raises(ValueError, match="either ids or"):
            await service.truncate()
    sent = [(r.path.removeprefix("/v1/transactions"), r.body) for r in transport.requests]
    assert sent == [
        ("?limit=5", b""),
        ("/7", b""),
        ("/truncate", b'{"ids": ["7", "8"]}'),
        ("/truncate", b'{"before_ms": 9}'),
    ]


async def test_refusals_raise_their_named_errors(make_client, transport):
    transport.answer = OverHttp()
    async with make_client() as client:
        service = client.transactions
        with pytest.raises(TransactionNotInProgress):
            await service.commit(5)
        await service.start()
        await service.start()
        for pointer in (1001, 1002):
            await service.can_commit(pointer, [b"a"])
        await service.commit(1001)
        with pytest.raises(TransactionConflict):
            await service.commit(1002)
        with pytest.raises(BadRequest, match="above 0"):
            await service.abort(0)


CALLS = {
    "start": lambda service: service.start(),
    "can_commit": lambda service: service.can_commit(7),
    "commit": lambda service: service.commit(7),
    "abort": lambda service: service.abort(7),
    "invalidate": lambda service: service.invalidate(7),
    "checkpoint": lambda service: service.checkpoint(7),
    "snapshot": lambda service: service.snapshot(),
    "truncate": lambda service: service.truncate(ids=[7]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_only_a_commit_of_unknown_outcome_is_not_retried(make_client, transport, name):
    transport.answer = lambda _: UNKNOWN
    async with make_client(deadline_s=0.02) as client:
        with pytest.raises(OutcomeUnknown):
            await CALLS[name](client.transactions)
    assert (len(transport.requests) == 1) == (name == "commit")


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_refused_for_now_is_retried(make_client, transport, name):
    answers = iter([NO_LEADER])
    service = OverHttp()
    service.rules.in_progress[7] = []
    transport.answer = lambda request: next(answers, None) or service(request)
    if name == "truncate":
        transport.answer = lambda _: next(answers, None) or answer_json({"removed": 1})(_)
    async with make_client() as client:
        await CALLS[name](client.transactions)
    assert len(transport.requests) == 2


async def test_without_a_leader_the_refusal_comes_at_the_deadline(make_client, transport):
    transport.answer = lambda _: NO_LEADER
    async with make_client(deadline_s=0.01) as client:
        with pytest.raises(NoLeader):
            await client.transactions.start()


@pytest.mark.parametrize("body", [b"", b"[]", b"\x0a", b"{}"])
async def test_an_answer_that_is_no_transaction_is_unknown(make_client, transport, body):
    async with make_client(deadline_s=0.01) as client:
        for kind in ("application/json", "application/x-thrift"):
            transport.answer = lambda _, kind=kind: Reply(200, {"content-type": kind}, body)
            if body == b"[]" and kind != "application/json":
                continue
            with pytest.raises(OutcomeUnknown, match="not as a broker does"):
                await client.transactions.start()


def test_the_blocking_service_has_the_same_methods():
    for name, method in inspect.getmembers(TransactionService, inspect.isfunction):
        if not name.startswith("_"):
            blocking = getattr(SyncTransactionService, name)
            assert inspect.signature(blocking).parameters == inspect.signature(method).parameters
            assert blocking.__doc__ == method.__doc__
            assert blocking.__qualname__ == f"SyncTransactionService.{name}"
    assert isinstance(SyncClient.transactions, property)

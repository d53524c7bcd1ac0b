"""Whole transactions of the client against a whole broker, its transaction service included."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.client import Client, NewMessage, OutcomeUnknown, SyncClient, TransactionConflict
from broker.client.client_request import ClientRequest, Reply
from broker.client.transport import HttpTransport
from broker.client.values import Settings
from tests.kit.served import ServedNode

# ruff: noqa: PT012 - These tests test whole blocks.

NUMBERS = itertools.count()


@pytest.fixture
async def client(node: ServedNode) -> AsyncIterator[Client]:
    async with Client(node.url, namespace=f"tx{next(NUMBERS)}") as client:
        await client.create_topic("t")
        yield client


async def seen(client: Client, topic: str = "t") -> list[bytes]:
    """Return the messages that a new transaction may see."""
    snapshot = await client.transactions.snapshot()
    return [message.payload for message in await client.poll(topic, snapshot=snapshot)]


async def test_others_see_a_transaction_from_its_commit_on(client: Client) -> None:
    async with client.transaction() as tx:
        await tx.publish("t", ["0", "1"])
        await tx.checkpoint()
        await tx.publish("t", b"2")
        assert [message.payload for message in await tx.poll("t")] == [b"0", b"1"]
        assert await seen(client) == []
    assert await seen(client) == [b"0", b"1", b"2"]


async def test_no_transaction_sees_the_messages_of_a_failed_one(client: Client) -> None:
    with pytest.raises(KeyError):
        async with client.transaction() as tx:
            await tx.publish("t", "x")
            await tx.checkpoint()
            raise KeyError
    await client.publish("t", b"behind")
    assert await seen(client) == [b"behind"]
    assert tx.state == "aborted"


async def test_of_two_transactions_with_a_common_key_one_conflicts_and_is_repeated(
    client: Client,
) -> None:
    tried = []

    async def work(tx: Any) -> None:
        tried.append(tx.id)
        tx.changes("account/7")
        await tx.publish("t", f"{len(tried)}")
        if len(tried) == 1:
            async with client.transaction() as other:
                other.changes("account/7")

    await client.in_transaction(work)
    assert await seen(client) == [b"2"]
    with pytest.raises(TransactionConflict):
        tried.clear()
        await client.in_transaction(work, attempts_max=1)


async def test_a_large_transaction_keeps_order_keys_headers_and_lifetimes(client: Client) -> None:
    await client.create_topic("other")
    sent = [NewMessage(b"%d" % n + bytes(500), f"k{n}", {"n": str(n)}, 600 + n) for n in range(30)]
    async with client.transaction(long=True, buffer_bytes_max=4000) as tx:
        for number, message in enumerate(sent):
            await tx.publish("t", message)
            await tx.publish("other", b"%d" % number)
    snapshot = await client.transactions.snapshot()
    found = await client.poll("t", snapshot=snapshot)
    assert [(m.payload, m.key, dict(m.headers)) for m in found] == [
        (m.payload, str(m.key).encode(), {"n": str(n).encode()}) for n, m in enumerate(sent)
    ]
    assert await seen(client, "other") == [b"%d" % n for n in range(30)]
    rows = [row for row in (await client.browse("t")).messages if row.kind == "stored"]
    assert len({row.expires_at for row in rows}) > 1, "each has the lifetime that it was given"


class Cutting(HttpTransport):
    """Loses answers: ``cut`` holds the ends of paths, and whether the request still arrives."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, None)
        self.cut: list[tuple[str, bool]] = []
        self.paths: list[str] = []

    async def send(self, request: ClientRequest, timeout_s: float) -> Reply:
        action = request.path.rsplit("/", 1)[1]
        self.paths.append(action)
        for entry in self.cut:
            if entry[0] == action:
                self.cut.remove(entry)
                if entry[1]:
                    await super().send(request, timeout_s)
                raise OutcomeUnknown(f"the answer to {action} was lost")
        return await super().send(request, timeout_s)


@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("action", ["commit", "publish"])
async def test_a_lost_answer_leaves_all_or_nothing(
    node: ServedNode, client: Client, action: str, *, arrives: bool
) -> None:
    settings = Settings(url=node.url, namespace=client.settings.namespace)
    transport = Cutting(settings)
    transport.cut = [(action, arrives)]
    async with Client(settings=settings, transport=transport) as cutting:
        if action == "commit":
            async with cutting.transaction() as tx:
                await tx.publish("t", "x")
        else:
            with pytest.raises(OutcomeUnknown):
                async with cutting.transaction() as tx:
                    await tx.publish("t", "x")
    await client.publish("t", "behind")
    committed = action == "commit"
    assert await seen(client) == ([b"x", b"behind"] if committed else [b"behind"])
    assert tx.state == ("committed" if committed else "invalid")
    assert "abort" not in transport.paths


def test_a_block_without_asyncio(node: ServedNode) -> None:
    with SyncClient(node.url, namespace=f"tx{next(NUMBERS)}") as client:
        client.create_topic("t")
        with client.transaction() as tx:
            tx.publish("t", "x")
            assert client.transactions.show(tx.id)["state"] == "in_progress"
        assert tx.state == "committed"
        snapshot = client.transactions.snapshot()
        assert [m.payload for m in client.poll("t", snapshot=snapshot)] == [b"x"]

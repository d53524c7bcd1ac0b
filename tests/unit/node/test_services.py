"""The transaction service that the parts of a node use. A sweep does not start it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from broker.client import Client
from broker.clock import SystemClock
from broker.config.sections import (
    Config,
    Role,
    ServerConfig,
    StorageConfig,
    SweepConfig,
    TopicsConfig,
    TransactionsConfig,
)
from broker.node import transactions
from broker.node.node import Node
from broker.node.servers import open_store
from broker.node.transactions import ServiceElsewhere, asked_service
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.topics.registry import TopicRegistry
from broker.topics.reserved import TRANSACTIONS
from tests.kit.serving import Http

LIFE_S = 100
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class Ahead(SystemClock):
    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def config(directory: Path, url: str | None = None, role: Role = Role.ALL) -> Config:
    return Config(
        server=ServerConfig(port=0, role=role),
        storage=StorageConfig(data_dir=directory),
        topics=TopicsConfig(transaction_life_max_s=LIFE_S),
        sweep=SweepConfig(sweep_interval_s=1000, sweep_margin_s=0),
        transactions=TransactionsConfig(
            transactions_url=url,
            transactions_prune_allowed=role is Role.TRANSACTIONS,
        ),
    )


@asynccontextmanager
async def started(wanted: Config, clock: SystemClock | None = None) -> AsyncIterator[Node]:
    one = Node(wanted, clock=clock)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def test_a_sweep_starts_no_service(tmp_path: Path) -> None:
    async with started(config(tmp_path)) as node:
        report = await node.sweep()
        assert (report.topics, report.skipped) == (0, 0)
    store = await open_store(config(tmp_path))
    records = Records(Logs(store, SystemClock()).resolver)
    assert await TopicRegistry(records).read(TRANSACTIONS) is None
    await store.close()


async def test_a_broker_sweeps_and_prunes_by_a_service_at_another_address(tmp_path: Path) -> None:
    """The service runs alone. The broker with the topics sweeps by its snapshots, and prunes at the service."""
    clock = Ahead()
    alone = config(tmp_path / "service", role=Role.TRANSACTIONS)
    async with started(alone, clock) as service:
        wanted = config(tmp_path / "broker", service.url, Role.TOPICS)
        async with (
            started(wanted, clock) as node,
            Client(service.url) as transactions,
            Client(node.url) as client,
            Http(node.port) as http,
            Http(service.port) as at_service,
        ):
            failed = (await transactions.transactions.start()).transaction_id
            await client.create_topic("a/b")
            await client.publish("a/b", "failed", pointer=failed)
            blocked = await client.blockers("a/b")
            assert [each["state"] for each in blocked["blockers"]] == ["in_progress"]
            await transactions.transactions.invalidate(failed)
            clock.ahead_ms = LIFE_S * 1000 + 1000
            plan = (await http("GET", "/v1/transactions/prune", b"", JSON)).json
            assert (plan["prunable"], plan["unpassed"]["topic"]) == (0, "b")
            assert (await node.sweep()).inverted == 1
            # A service without topics does not know which transactions may be pruned.
            assert (await at_service("POST", "/v1/transactions/prune", b"", JSON)).status == 404
            done = (await http("POST", "/v1/transactions/prune", b"", JSON)).json
            assert (done["removed"], done["reason"]) == (1, None)
            snapshot = await transactions.transactions.snapshot()
            assert not list(snapshot.invalids)
            snapshot = type(snapshot)(transaction_id=0, read_pointer=failed + 1)
            assert await client.poll("a/b", snapshot=snapshot) == []


def test_the_configuration_names_the_service(tmp_path: Path) -> None:
    own: Any = object()
    assert asked_service(config(tmp_path), SystemClock(), own) is own
    elsewhere = asked_service(config(tmp_path, "http://127.0.0.1:1"), SystemClock(), own)
    assert isinstance(elsewhere, ServiceElsewhere)


async def test_a_service_that_does_not_answer_is_named_and_holds_up_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CLOSE_S", 0)
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await stopped.wait()
        writer.close()

    service = await asyncio.start_server(hang, "127.0.0.1")
    url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
    node = Node(config(tmp_path, url))
    await node.start()
    async with Http(node.port) as http:
        asking = asyncio.create_task(http("GET", "/v1/transactions/prune", b"", JSON))
        await asked.wait()
        async with asyncio.timeout(5):  # The request itself may take longer.
            await node.stop()
        reply = await asking
    stopped.set()
    service.close()
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
    assert f"The transaction service at {url}: " in reply.json["message"]

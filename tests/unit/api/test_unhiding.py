"""Operations that show hidden messages are off unless this start's configuration allows them, and name their caller."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from broker.client import Client, NotAllowed
from broker.clock import SystemClock
from broker.config.sections import Config, ServerConfig, TopicsConfig, TransactionsConfig
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, Http, listening, topic_path

PATH = "/v1/transactions"
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
ALLOWED = TransactionsConfig(transactions_reset_allowed=True)


async def post(http: Http | Broker, path: str, sent: Any = None) -> Answered:
    call = http.call if isinstance(http, Broker) else http
    return await call("POST", PATH + path, b"" if sent is None else json.dumps(sent).encode(), JSON)


async def hidden(http: Http | Broker) -> int:
    """Publish a message in a transaction, make it invalid, and return its number."""
    begun = int((await post(http, "")).json["transaction_id"])
    call = http.call if isinstance(http, Broker) else http
    sent = json.dumps({"write_pointer": str(begun), "messages": ["hidden"]}).encode()
    assert (await call("POST", topic_path("t", "publish"), sent, JSON)).status == 200
    assert (await post(http, f"/{begun}/invalidate")).json == {"invalidated": True}
    return begun


async def seen(http: Http | Broker) -> list[str]:
    call = http.call if isinstance(http, Broker) else http
    snapshot = (await call("GET", f"{PATH}/snapshot", b"", JSON)).json
    sent = json.dumps({"snapshot": snapshot}).encode()
    polled = await call("POST", topic_path("t", "poll"), sent, JSON)
    return [each["payload"] for each in polled.json]


@pytest.mark.parametrize("how", ["reset", "ids", "before"])
async def test_hidden_messages_stay_hidden_unless_the_configuration_allows_more(
    broker: Broker, how: str
) -> None:
    begun = await hidden(broker)
    await post(broker, "")
    path, sent = {
        "reset": ("/reset", None),
        "ids": ("/truncate", {"ids": [begun]}),
        "before": ("/truncate", {"before_ms": 1}),
    }[how]
    reply = await post(broker, path, sent)
    assert (reply.status, reply.json["code"], reply.json["outcome"]) == (
        403,
        "not_allowed",
        "refused",
    )
    assert "1 write pointers in progress and 1 invalid" in reply.json["message"]
    assert "--transactions-reset-allowed true" in reply.json["message"]
    assert await seen(broker) == []


async def test_an_allowed_reset_says_what_it_shows_and_is_logged_with_its_caller() -> None:
    broker = Broker(Config(transactions=ALLOWED))
    await broker.call("PUT", topic_path("t"))
    async with listening(broker) as http:
        await hidden(http)
        await post(http, "")
        with capture_logs() as lines:
            reply = await post(http, "/reset")
        assert reply.json == {"in_progress": 1, "invalid": 1}
        (line,) = [each for each in lines if each["event"] == "hidden messages become visible"]
        assert (line["operation"], line["caller"], line["log_level"]) == (
            "reset",
            "127.0.0.1",
            "warning",
        )
        assert (line["in_progress"], line["invalid"]) == (1, 1)
        assert await seen(http) == ["hidden"]
    await broker.close()


async def test_who_ended_a_transaction_is_logged(broker: Broker, http: Http) -> None:
    with capture_logs() as lines:
        begun = await hidden(http)
    (line,) = [each for each in lines if each["event"] == "transactions ended by a caller"]
    assert (line["caller"], line["path"]) == ("127.0.0.1", f"{PATH}/{begun}/invalidate")


async def test_the_headers_of_a_node_open_no_door_of_a_standalone_node(broker: Broker) -> None:
    node = {**JSON, "Broker-From": "1/a", "Broker-Protocol": "1"}
    reply = await broker.call("POST", f"{PATH}/reset", b"", node)
    assert (reply.status, reply.json["code"]) == (403, "forbidden")


@pytest.mark.parametrize("node", [0, 1])
@on_cluster(nodes=2, topic=False)
async def test_every_node_refuses(cluster: HttpCluster, node: int) -> None:
    await cluster.lead_all(0)
    await cluster(node, "POST", PATH, b"", JSON)
    reply = await cluster(node, "POST", f"{PATH}/reset", b"", JSON)
    assert (reply.status, reply.json["code"]) == (403, "not_allowed")
    # Headers of a node without the cluster's secret do not help.
    forged = {**JSON, "Broker-From": "1/a", "Broker-Protocol": "1", "Broker-Secret": "x"}
    reply = await cluster(node, "POST", f"{PATH}/reset", b"", forged)
    assert (reply.status, reply.json["code"]) == (403, "forbidden")


@on_cluster(nodes=2, topic=False, transactions=ALLOWED)
async def test_a_node_that_does_not_lead_passes_an_allowed_reset_on(cluster: HttpCluster) -> None:
    await cluster.lead_all(0)
    await cluster(1, "POST", PATH, b"", JSON)
    reply = await cluster(1, "POST", f"{PATH}/reset", b"", JSON)
    assert (reply.status, reply.json) == (200, {"in_progress": 1, "invalid": 0})


async def test_the_client_raises_the_refusal(http: Http) -> None:
    async with Client(http.url) as client:
        with pytest.raises(NotAllowed):
            await client.transactions.reset()
        with pytest.raises(NotAllowed):
            await client.transactions.truncate(ids=[5])


async def test_pruning_needs_no_permission(broker: Broker) -> None:
    reply = await post(broker, "/prune")
    assert (reply.status, reply.json["removed"]) == (200, 0)


class Ahead(SystemClock):
    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_a_service_that_brokers_elsewhere_prune_forgets_only_what_is_past_its_life() -> None:
    clock = Ahead()
    broker = Broker(
        Config(
            topics=TopicsConfig(transaction_life_max_s=100),
            transactions=TransactionsConfig(transactions_prune_allowed=True),
        ),
        clock=clock,
    )
    await broker.call("PUT", topic_path("t"))
    begun = await hidden(broker)
    for sent in ({"ids": [str(begun)]}, {"before_ms": str(clock.now_ms() * 2)}, {"ids": []}):
        assert (await post(broker, "/truncate", sent)).json["code"] == "not_allowed"
    assert (await post(broker, "/reset")).json["code"] == "not_allowed"
    clock.ahead_ms = 200_000
    running = int((await post(broker, "")).json["transaction_id"])
    young = {"ids": [str(begun), str(running)]}
    assert (await post(broker, "/truncate", young)).json["code"] == "not_allowed"
    assert (await post(broker, "/truncate", {"ids": [str(begun)]})).json == {"removed": 1}
    await broker.close()


async def test_lines_about_ended_transactions_are_bounded(http: Http) -> None:
    with capture_logs() as lines:
        for _ in range(40):
            begun = (await post(http, "")).json["transaction_id"]
            assert (await post(http, f"/{begun}/invalidate")).json == {"invalidated": True}
    told = [each for each in lines if each["event"] == "transactions ended by a caller"]
    assert 0 < len(told) < 40


def test_the_default_is_off() -> None:
    assert not Config(server=ServerConfig()).transactions.transactions_reset_allowed

"""Bring requests, and a node's own calls of the transaction service, to the leader, and tell which node that is."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from broker.api.routed import OwnService, error_of
from broker.config.sections import LimitsConfig
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
from broker.model import PublishRequest, RollbackRange, Snapshot
from broker.node.transactions import settings_of
from broker.operations.media_types import TEPHRA_SNAPSHOT
from broker.operations.operation import Answerer, RepeatEffect
from broker.operations.table import OPERATIONS, TOPIC, TRANSACTIONS
from broker.storage.table import Space
from broker.testing.virtual_time import pass_time
from broker.topics.topic_state import TopicState
from broker.transactions.service import Transactions
from broker.transactions.service_calls import CALLS, ServiceCall
from broker.wire import avro
from tests.kit.http_cluster import JSON, HttpCluster, on_cluster
from tests.kit.serving import Broker, Http, topic_path
from tests.kit.transacting import PATH

PUBLISH = topic_path("t", "publish")
TEXT = {"Content-Type": "text/plain"}
AVRO = {"Content-Type": "avro/binary"}
BODIES = {
    "publish": (b"a", TEXT),
    "store": (avro.encode_publish_request(PublishRequest(1 << 62, [b"a"])), AVRO),
    "rollback": (avro.encode_publish_response(RollbackRange(5, bytes(10), bytes(10))), AVRO),
}


LED = {each.name: each.effect for each in OPERATIONS if each.by is Answerer.LEADER}


def test_every_operation_about_a_topic_is_answered_by_its_leader() -> None:
    about_topics = {
        each.name for each in OPERATIONS if each.template.startswith((TOPIC, TRANSACTIONS))
    }
    # Streams of events are made of polls, and any node reads in bulk.
    anywhere = {"events", "arrow", "arrow_as"}
    # Cursors are records, which change by compare-and-set wherever the request comes.
    anywhere |= {"cursors", "show_cursor", "put_cursor", "delete_cursor"}
    # Pruning reads records, and asks the service like a client.
    anywhere |= {"prune_plan", "prune_transactions"}
    assert about_topics == set(LED) | anywhere


VERBS = ("start", "can_commit", "commit", "abort", "invalidate", "checkpoint")


def test_only_repeatable_requests_are_sent_twice() -> None:
    writes = {"publish", "store", "rollback", "create_topic", "update_topic", "delete_topic"}
    writes |= {"begin_stage", "store_staged", "publish_stages", "purge"}
    writes |= {f"{verb}_transaction" for verb in VERBS} | {
        "truncate_transactions",
        "reset_transactions",
    }
    keyed = {"publish", "store", "store_staged"}
    assert {name for name, effect in LED.items() if not effect.is_reading} == writes
    assert {name for name, effect in LED.items() if effect is RepeatEffect.KEYED} == keyed


def test_only_the_leader_of_the_service_answers_reads_of_transactions() -> None:
    led = {"list_transactions", "transactions_snapshot", "show_transaction"}
    assert {name for name, effect in LED.items() if effect is RepeatEffect.LED_READING} == led


@on_cluster(nodes=2)
async def test_a_leader_tells_its_epoch_in_every_answer(cluster: HttpCluster) -> None:
    unclaimed = await cluster(0, "GET", topic_path("t"))
    assert "Broker-Leader" not in unclaimed.headers
    first = await cluster.publish(0, "a", Idempotency_Key="k")
    again = await cluster.publish(0, "a", Idempotency_Key="k")
    shown = await cluster(0, "GET", topic_path("t"))
    polled = await cluster(0, "POST", topic_path("t", "poll"), b"{}", JSON)
    leader = f"{cluster.url(0)};node=0;epoch=1"
    assert {r.headers["Broker-Leader"] for r in (first, again, shown, polled)} == {leader}
    assert again.headers["Idempotency-Replayed"] == "true"


@on_cluster(nodes=2)
async def test_topics_of_one_node_have_their_own_epochs(cluster: HttpCluster) -> None:
    """All stores have the same empty reply, but for its headers."""
    for to in (1, 0):
        await cluster.publish(0, "a")
        await cluster.lead(to)
    await cluster(0, "PUT", topic_path("u"))
    await cluster(0, "PUT", "/v1/cluster/pins/default/u", b'{"node": "0"}', JSON)
    await pass_time(2.0)
    pointer = cluster.sim.clock.now_ms() * 1_000_000
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    for topic in ("t", "u"):
        await cluster(0, "POST", topic_path(topic, "publish"), b"a", TEXT)
    replies = [
        await cluster(0, "POST", topic_path(topic, "store"), body, AVRO)
        for topic in ("t", "u", "t")
    ]
    assert {reply.body for reply in replies} == {b""}
    epochs = [reply.headers["Broker-Leader"].rpartition("=")[2] for reply in replies]
    assert epochs == ["3", "1", "3"]


@pytest.mark.parametrize("kind", ["avro/binary", "application/json"])
@on_cluster(nodes=2)
async def test_every_node_tells_the_ids_of_published_messages(
    cluster: HttpCluster, kind: str
) -> None:
    body = b'["a", "b"]' if kind == "application/json" else bytes.fromhex("02040261026200")
    replies = [
        await cluster(node, "POST", PUBLISH, body, {"Content-Type": kind}) for node in (0, 1)
    ]
    page = await cluster(1, "GET", topic_path("t", "messages"))
    ids = [message["id"] for message in page.json["messages"]]
    for number, reply in enumerate(replies):
        first, last = ids[2 * number], ids[2 * number + 1]
        headers = [reply.headers[f"Broker-{name}"] for name in ("First-Id", "Last-Id", "Count")]
        assert headers == [first, last, "2"]
        if reply.body:
            assert (reply.json["first_id"], reply.json["last_id"]) == (first, last)


@on_cluster(nodes=2)
async def test_a_node_that_led_until_now_forwards_its_requests(cluster: HttpCluster) -> None:
    await cluster.publish(0, "a")
    cluster.machines[0].pause()
    asking = asyncio.ensure_future(cluster.publish(0, "b"))
    assert (await cluster.publish(1, "c")).status == 200
    await cluster.lead(1)
    cluster.machines[0].resume()
    reply = await asking
    assert (reply.status, reply.headers["Broker-Leader"]) == (
        200,
        f"{cluster.url(1)};node=1;epoch=2",
    )
    assert await cluster.payloads(1) == ["a", "c", "b"]


@on_cluster(nodes=2, limits=LimitsConfig(queued_requests_max=1))
async def test_a_leader_without_room_refuses_requests_at_any_node(cluster: HttpCluster) -> None:
    await cluster.publish(1, "a")
    cluster.sim.table.slow_s = dict.fromkeys(Space, 1.0)
    for node in (0, 1):
        asking = [asyncio.ensure_future(cluster.publish(node, "b")) for _ in range(8)]
        replies = await asyncio.gather(*asking)
        refused = [reply.headers["Broker-Error"] for reply in replies if reply.status == 503]
        assert refused
        assert set(refused) == {"overloaded"}


@on_cluster(nodes=2)
async def test_names_without_a_topic_leave_nothing_in_memory(cluster: HttpCluster) -> None:
    def states() -> int:
        gc.collect()
        return sum(type(each) is TopicState for each in gc.get_objects())

    await cluster.publish(0, "a")
    before = states()
    for number in range(20):
        for operation in ("publish", "store", "rollback"):
            reply = await cluster(
                number % 2, "POST", topic_path(f"no{number}", operation), *BODIES[operation]
            )
            assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
    assert states() == before


@pytest.mark.parametrize("query", ["?ttl=0", "?ttl=604801", "?tll=1"])
@on_cluster(nodes=2)
async def test_every_node_refuses_bad_parameters(cluster: HttpCluster, query: str) -> None:
    for node in (0, 1):
        reply = await cluster(node, "POST", PUBLISH + query, b"a", TEXT)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


@on_cluster(nodes=2)
async def test_a_purge_through_any_node_holds_at_every_node(cluster: HttpCluster) -> None:
    await cluster.publish(0, "old")
    purged = await cluster(1, "POST", topic_path("t", "purge?before=now"))
    assert purged.status == 200
    await cluster.publish(1, "new")
    for node in (0, 1):
        page = (await cluster(node, "GET", topic_path("t", "messages"))).json
        assert [row["payload"] for row in page["messages"]] == ["new"]
        shown = (await cluster(node, "GET", topic_path("t"))).json
        assert shown["purged_ms"] == str(purged.json["purged_ms"])


LEADER = topic_path("t", "leader")


async def test_a_standalone_node_leads_every_topic(http: Http) -> None:
    before = await http("GET", LEADER)
    assert before.json == {"node": 0, "url": http.url, "epoch": None}
    await http("POST", topic_path("t", "publish"), b"a", {"Content-Type": "text/plain"})
    assert (await http("GET", LEADER)).json == {"node": 0, "url": http.url, "epoch": 1}
    assert "Broker-Leader" not in before.headers


@on_cluster(nodes=2)
async def test_every_node_of_a_cluster_names_the_leader(cluster: HttpCluster) -> None:
    for epoch, leader in enumerate((0, 1), start=1):
        await cluster.lead(leader)
        await cluster.publish(0, "a")
        for node in (0, 1):
            told = (await cluster(node, "GET", LEADER)).json
            assert told == {"node": leader, "url": cluster.url(leader), "epoch": epoch}


async def test_an_unknown_topic_has_no_leader(broker: Broker) -> None:
    assert (await broker.call("GET", topic_path("no", "leader"))).status == 404


# --- The transaction service -----------------------------------------------------------------------

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

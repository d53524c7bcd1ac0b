"""A request in a cluster finds the leader, also while leadership moves or answers are lost."""

import asyncio
from typing import Any, Literal

import pytest

from broker.coordination.memory import SESSION_TIMEOUT_S
from broker.model import PublishRequest
from broker.node.ground import SECRET_KEY
from broker.routing import nodeheaders
from broker.storage.table import Space
from broker.testing.virtual_time import pass_time
from broker.wire import avro
from tests.kit.http_cluster import JSON, HttpCluster, on_cluster
from tests.kit.openapi import Answered
from tests.kit.serving import topic_path

PUBLISH = topic_path("t", "publish")
STORE = topic_path("t", "store")
ROLLBACK = topic_path("t", "rollback")
TEXT = {"Content-Type": "text/plain"}
AVRO = {"Content-Type": "avro/binary"}
POINTER_PER_MS = 1_000_000
Lost = Literal["request_lost", "answer_lost"]
OF_NODE_0 = "orders"
"""A topic that node 0 of three leads without a pin."""
FORWARDED = "broker_forwarded_total"

either_is_lost = pytest.mark.parametrize("lost", ["request_lost", "answer_lost"])


async def lose(cluster: HttpCluster, lost: Lost, *request: Any, dies: bool = False) -> Answered:
    """Send a request to node 1, which forwards it to node 0, and lose it or its answer between the two."""
    losing = cluster.request_lost if lost == "request_lost" else cluster.answer_lost
    return await losing(cluster(1, *request), by=1, to=0, dies=dies)


@on_cluster()
async def test_any_node_takes_a_publish_and_the_leader_stores_it(cluster: HttpCluster) -> None:
    for number in range(3):
        reply = await cluster.publish(number, b"m%d" % number)
        assert reply.status == 200
        assert reply.headers["Broker-Leader"].startswith(cluster.url(0) + ";node=0;epoch=")
    for node in range(3):
        assert await cluster.payloads(node) == ["m0", "m1", "m2"]
    assert await cluster.metric(0, FORWARDED, 'kind="publish"') == 0
    assert await cluster.metric(1, FORWARDED, 'kind="publish"') == 1


@on_cluster()
async def test_all_nodes_give_the_same_answers(cluster: HttpCluster) -> None:
    assert (await cluster(1, "PUT", topic_path("u"))).status == 200
    assert (await cluster(1, "PUT", topic_path("u"))).status == 409
    pointer = cluster.sim.clock.now_ms() * POINTER_PER_MS
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    stored = await cluster(1, "POST", topic_path("u", "store"), body, AVRO)
    assert stored.status == 200
    reference = avro.encode_publish_request(PublishRequest(pointer, []))
    published = await cluster(1, "POST", topic_path("u", "publish"), reference, AVRO)
    assert (published.status, published.headers["Content-Type"]) == (200, "avro/binary")
    rolled_back = await cluster(1, "POST", topic_path("u", "rollback"), published.body, AVRO)
    assert rolled_back.status == 200
    for target in ("", "/stats", "/messages?payload=full", "/leader"):
        replies = [await cluster(node, "GET", topic_path("u") + target) for node in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        if target != "/stats":
            assert replies[0].body == replies[1].body == replies[2].body
    assert (await cluster(1, "DELETE", topic_path("u"))).status == 200
    gone = await cluster(1, "GET", topic_path("u"))
    assert (gone.status, gone.headers["Broker-Error"]) == (404, "topic_not_found")


@on_cluster()
async def test_any_node_names_the_leader_and_its_epoch(cluster: HttpCluster) -> None:
    target = topic_path("t", "leader")
    before = (await cluster(2, "GET", target)).json
    assert before == {"node": 0, "url": cluster.url(0), "epoch": None}
    await cluster.publish(0, "a")
    assert (await cluster(2, "GET", target)).json["epoch"] == 1
    await cluster.lead(1)
    await cluster.publish(0, "b")
    after = (await cluster(2, "GET", target)).json
    assert after == {"node": 1, "url": cluster.url(1), "epoch": 2}


@on_cluster()
async def test_a_node_forwards_a_request_with_its_own_headers(cluster: HttpCluster) -> None:
    await cluster.publish(1, "a", X_Request_Id="asked-1")
    reply = await cluster.publish(1, "b", X_Request_Id="asked-2", Request_Timeout="7")
    assert reply.headers["X-Request-Id"] == "asked-2"
    first, again, sent = cluster.forwarded(1)
    # The leader refuses a write without an epoch, and tells its epoch. The same attempt comes again with it.
    assert "Broker-Epoch" not in first.headers
    assert (again.headers["Broker-Attempt"], again.headers["Broker-Epoch"]) == ("1", "1")
    assert (sent.to, sent.body) == (0, b"b")
    assert sent.headers["X-Request-Id"] == "asked-2"
    assert sent.headers["Broker-From"].startswith("1/")
    assert sent.headers["Broker-Protocol"] == "2"
    assert sent.headers["Broker-Attempt"] == "1"
    assert len(sent.headers["Broker-Key"]) == 32
    assert "Request-Timeout" not in sent.headers
    left_ms = int(sent.headers["Broker-Deadline"]) - cluster.sim.clock.now_ms()
    assert 6900 < left_ms <= 7000


@on_cluster()
async def test_a_node_forwards_a_clients_own_key(cluster: HttpCluster) -> None:
    await cluster.publish(1, "a", Idempotency_Key="mine")
    again = await cluster.publish(2, "a", Idempotency_Key="mine")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert await cluster.payloads() == ["a"]
    assert cluster.forwarded(1)
    assert all("Broker-Key" not in sent.headers for sent in cluster.forwarded(1))


@pytest.mark.parametrize("parameter", ["a=\u017c".encode(), b"a=\xe9"])
@on_cluster()
async def test_any_node_takes_headers_of_any_characters(
    cluster: HttpCluster, parameter: bytes
) -> None:
    head = f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n".encode()
    for node in range(3):
        async with cluster.connection(node) as http:
            await http.send(head + b"Content-Type: text/plain; " + parameter + b"\r\n\r\na")
            assert (await http.reply()).status == 200
    assert await cluster.payloads() == ["a", "a", "a"]


@either_is_lost
@on_cluster()
async def test_a_publish_without_an_answer_is_sent_again_and_stored_once(
    cluster: HttpCluster, lost: Lost
) -> None:
    await cluster.publish(1, "first")
    assert (await lose(cluster, lost, "POST", PUBLISH, b"a", TEXT)).status == 200
    assert await cluster.payloads() == ["first", "a"]
    sent = [each.headers for each in cluster.forwarded(1) if each.body == b"a"]
    assert len({headers["Broker-Key"] for headers in sent}) == 1
    assert [headers["Broker-Attempt"] for headers in sent] == ["1", "2"]


@on_cluster()
async def test_a_leader_looks_a_key_up_only_if_an_attempt_may_have_been_done(
    cluster: HttpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looked_up = cluster.sim.table.scan, []

    async def scan(space: Space, *bounds: bytes, reverse: bool = False, **more: int) -> Any:
        if space is Space.MESSAGES and reverse:
            looked_up.append(bounds)
        return await real(space, *bounds, reverse=reverse, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster.sim.table, "scan", scan)
    await cluster.publish(2, "a")
    cluster.cut_off_from_coordinator(1)
    await cluster.lead(2)
    await cluster.publish(2, "b")
    looked_up.clear()
    # Node 1 asks node 0, which names node 2, which tells its epoch.
    await cluster.publish(1, "c")
    assert ([sent.to for sent in cluster.forwarded(1)], looked_up) == ([0, 2, 2], [])
    await cluster.request_lost(cluster.publish(1, "d"), by=1, to=2)
    assert len(looked_up) == 1
    assert await cluster.payloads() == ["a", "b", "c", "d"]


@either_is_lost
@pytest.mark.parametrize("to", [1, 2])
@on_cluster()
async def test_a_publish_whose_leader_died_is_stored_once(
    cluster: HttpCluster, lost: Lost, to: int
) -> None:
    """The next leader is the node that forwards, or a third one."""
    await cluster.publish(1, "first")
    await cluster(0, "POST", f"/v1/cluster/nodes/{3 - to}/drain")
    assert (await lose(cluster, lost, "POST", PUBLISH, b"a", TEXT, dies=True)).status == 200
    for node in (1, 2):
        assert await cluster.payloads(node) == ["first", "a"]
    assert (await cluster(1, "GET", topic_path("t", "leader"))).json["node"] == to


@on_cluster()
async def test_requests_leave_a_silent_leader_when_another_node_leads(cluster: HttpCluster) -> None:
    await cluster.publish(1, "first")
    cluster.machines[0].pause()
    later = b'{"start": %d}' % (cluster.sim.clock.now_ms() + 30_000)
    asking = [
        asyncio.ensure_future(cluster.publish(1, "a")),
        asyncio.ensure_future(
            cluster(1, "POST", topic_path("t", "poll") + "?wait=20", later, JSON)
        ),
    ]
    assert [(await asked).status for asked in asking] == [200, 200]
    polled = [sent.to for sent in cluster.forwarded(1, "poll")]
    assert (polled[0], len(polled)) == (0, 2)
    assert polled[1] in (1, 2)
    assert await cluster.payloads(1) == ["first", "a"]


@pytest.mark.parametrize("node", [0, 1])
@on_cluster()
async def test_a_stopping_node_refuses_requests_that_wait_for_a_leader(
    cluster: HttpCluster, node: int
) -> None:
    await cluster.publish(1, "first")
    # Node 2 should lead, and is dead. The coordinator is down, so that no other node takes over.
    await cluster.lead(2)
    cluster.sim.coordination.outage()
    cluster.machines[2].kill()
    waiting = asyncio.ensure_future(cluster.publish(node, "a"))
    await pass_time(0.1)
    assert not waiting.done()
    cluster.machines[node].terminate(again=False)
    reply = await waiting
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/cluster/pins/default/t", b'{"node": "1"}'),
        ("DELETE", "/v1/cluster/pins/default/t", b""),
        ("POST", "/v1/cluster/nodes/2/drain", b""),
        ("POST", "/v1/cluster/nodes/2/undrain", b""),
        ("PUT", topic_path("t", "cursors/c"), b'{"after": null, "expected": null}'),
        ("DELETE", topic_path("t", "cursors/c"), b""),
    ],
)
@on_cluster()
async def test_a_change_by_a_node_without_storage_ends_at_its_timeout(
    cluster: HttpCluster, method: str, path: str, body: bytes
) -> None:
    mend = cluster.machines[1].way.cut(there=True, back=True)
    began = asyncio.get_running_loop().time()
    reply = await cluster(1, method, path, body, {**JSON, "Request-Timeout": "2"})
    assert reply.headers["Broker-Outcome"] in {"refused", "unknown"}, reply
    assert asyncio.get_running_loop().time() - began < 2.5
    mend()


@pytest.mark.parametrize("known", [(0, 1, 2), (1,)])
@on_cluster()
async def test_a_frozen_leader_delays_a_keyed_publish_for_a_session_and_a_second(
    cluster: HttpCluster, known: tuple[int, ...]
) -> None:
    topic = f"default/{OF_NODE_0}"
    loop = asyncio.get_running_loop()
    async with cluster.client(0, url=",".join(map(cluster.url, known)), idempotent=True) as client:
        await client.create_topic(topic)
        await client.publish(topic, b"before")
        cluster.machines[0].pause()
        began = loop.time()
        await pass_time(0.3)
        await client.publish(topic, b"after")
        assert loop.time() - began <= SESSION_TIMEOUT_S + 1
    cluster.machines[0].resume()


@either_is_lost
@pytest.mark.parametrize("path", [STORE, ROLLBACK])
@on_cluster()
async def test_stores_and_rollbacks_are_sent_again_too(
    cluster: HttpCluster, path: str, lost: Lost
) -> None:
    pointer = cluster.sim.clock.now_ms() * POINTER_PER_MS
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    published = await cluster(1, "POST", PUBLISH, body, AVRO)
    if path == ROLLBACK:
        body = published.body
    assert (await lose(cluster, lost, "POST", path, body, AVRO)).status == 200
    shown = (await cluster(1, "GET", topic_path("t", "messages"))).json["messages"]
    if path == STORE:
        reference = avro.encode_publish_request(PublishRequest(pointer, []))
        await cluster(1, "POST", PUBLISH, reference, AVRO)
        assert await cluster.payloads() == ["a", "a"]
    else:
        assert [message["tx_state"] for message in shown] == ["rolled_back"]


@on_cluster()
async def test_a_node_answers_that_an_outcome_stays_unknown(cluster: HttpCluster) -> None:
    await cluster.publish(1, "first")
    cluster.sim.network.cut("node-0", "node-1")
    reply = await cluster.publish(1, "a", Request_Timeout="0.2")
    assert (reply.status, reply.headers["Broker-Error"]) == (500, "outcome_unknown")
    assert reply.headers["Broker-Outcome"] == "unknown"
    assert "Retry-After" not in reply.headers
    cluster.sim.network.heal()
    await cluster.publish(1, "b")
    cluster.sim.network.cut("node-0", "node-1")
    own = await cluster.publish(1, "a", Request_Timeout="0.2", Idempotency_Key="mine")
    assert (own.status, own.headers["Broker-Error"]) == (503, "outcome_unknown")
    assert "Retry-After" in own.headers
    assert await cluster.metric(1, "broker_unknown_outcomes_total", 'kind="publish"') == 2


@on_cluster()
async def test_a_creation_is_not_sent_again_once_it_may_have_been_done(
    cluster: HttpCluster,
) -> None:
    await cluster.publish(1, "first")
    reply = await lose(cluster, "answer_lost", "PUT", topic_path(OF_NODE_0))
    assert (reply.status, reply.headers["Broker-Outcome"]) == (500, "unknown")
    creations = [sent for sent in cluster.forwarded(1, OF_NODE_0) if sent.method == "PUT"]
    assert len(creations) == 1
    await pass_time(1.0)
    assert (await cluster(1, "GET", topic_path(OF_NODE_0))).status == 200


@on_cluster()
async def test_requests_wait_while_there_is_no_leader(cluster: HttpCluster) -> None:
    cluster.machines[0].kill()
    waiting = [asyncio.ensure_future(cluster.publish(node, "a")) for node in (1, 2)]
    refused = await cluster.publish(1, "never", Request_Timeout="0.1")
    assert (refused.status, refused.headers["Broker-Error"]) == (503, "no_leader")
    assert refused.headers["Broker-Outcome"] == "refused"
    assert [(await one).status for one in waiting] == [200, 200]
    assert await cluster.payloads(2) == ["a", "a"]


@on_cluster()
async def test_all_waiting_requests_go_on_when_a_leader_is_known(
    cluster: HttpCluster,
) -> None:
    answered_s = []

    async def publish() -> None:
        assert (await cluster.publish(1, "a")).status == 200
        answered_s.append(asyncio.get_running_loop().time())

    cluster.machines[0].kill()
    await asyncio.gather(*(publish() for _ in range(10)))
    # Each request pauses for up to half a second, unless the leaders change.
    assert max(answered_s) - min(answered_s) < 0.05


@on_cluster()
async def test_a_change_of_properties_waits_for_a_leader_until_its_deadline(
    cluster: HttpCluster,
) -> None:
    await cluster.publish(0, "a")
    # Node 1 should lead, and node 0 does not hand the topic over.
    cluster.machines[0].pause()
    await cluster.lead(1)
    target = topic_path("t", "properties")
    reply = await cluster(1, "PUT", target, b"{}", {"Request-Timeout": "0.2"})
    assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")
    assert reply.headers["Broker-Outcome"] == "refused"


@on_cluster()
async def test_nodes_that_name_each_other_as_leader_answer_at_the_deadline(
    cluster: HttpCluster,
) -> None:
    await cluster.lead(2)
    cluster.cut_off_from_coordinator(1)
    await cluster.lead(1)
    began = len(cluster.forwarded(1))
    reply = await cluster.publish(1, "a", Request_Timeout="0.3")
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
    # A node does not forward a request that another node has forwarded to it.
    assert not cluster.forwarded(2)
    assert 0 < len(cluster.forwarded(1)) - began < 50


@on_cluster()
async def test_a_client_sees_no_421_and_its_request_goes_to_the_named_leader(
    cluster: HttpCluster,
) -> None:
    await cluster.publish(1, "a")
    cluster.cut_off_from_coordinator(1)
    await cluster.lead(2)
    assert (await cluster.publish(1, "b")).status == 200
    assert [sent.to for sent in cluster.forwarded(1) if sent.body == b"b"][:2] == [0, 2]


@on_cluster()
async def test_a_client_that_pretends_to_be_a_node_is_refused(cluster: HttpCluster) -> None:
    for name in nodeheaders.NAMES:
        reply = await cluster(0, "POST", PUBLISH, b"a", {**TEXT, name: "1"})
        assert (reply.status, reply.headers["Broker-Error"]) == (403, "forbidden")
    assert await cluster.payloads() == []


@on_cluster()
async def test_a_node_with_another_secret_retries_until_the_deadline(cluster: HttpCluster) -> None:
    cluster.machines[1].kill()
    secret = await cluster.sim.records.get(SECRET_KEY)
    assert secret is not None
    await cluster.sim.records.put_if(SECRET_KEY, secret.version, b"0" * 64)
    cluster.machines[1].start()
    assert await cluster.machines[1].served(30.0)
    reply = await cluster.publish(1, "a", Request_Timeout="0.1")
    assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")
    assert len(cluster.forwarded(1)) > 1


@on_cluster()
async def test_pipelined_publishes_keep_their_order_while_connections_break(
    cluster: HttpCluster,
) -> None:
    await cluster.publish(1, "--")
    cluster.sim.table.slow_s = dict.fromkeys(Space, 0.03)
    async with cluster.connection(1) as http:
        for number in range(20):
            await http.ask("POST", PUBLISH, b"%02d" % number, TEXT)
        for turn in range(10):
            # Requests are lost in every second turn, else answers.
            lost = cluster.strand(1, 0) if turn % 2 else []
            await pass_time(0.02)
            cluster.sim.network.break_off(lost or cluster.strand(1, 0))
        ids = [(await http.reply()).json["first_id"] for _ in range(20)]
    assert ids == sorted(set(ids))
    assert await cluster.payloads() == ["--", *(f"{number:02}" for number in range(20))]
    assert sum(sent.headers["Broker-Attempt"] > "1" for sent in cluster.forwarded(1)) > 3


@on_cluster()
async def test_metrics_count_forwarded_requests(cluster: HttpCluster) -> None:
    await cluster.publish(1, "a")
    await cluster(1, "GET", topic_path("t", "stats"))
    await cluster(1, "GET", topic_path(OF_NODE_0, "stats"))
    assert await cluster.metric(1, FORWARDED, 'code="ok"', 'kind="publish"') == 1
    assert await cluster.metric(1, FORWARDED, 'code="ok"', 'kind="stats"') == 1
    assert await cluster.metric(1, FORWARDED, 'code="topic_not_found"', 'kind="stats"') == 1
    assert await cluster.metric(1, "broker_forward_seconds_count", 'kind="publish"') == 1

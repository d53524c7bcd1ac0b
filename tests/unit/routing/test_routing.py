"""Several nodes over real sockets: who answers a request, and what happens while leadership moves."""

import asyncio

import pytest

from broker.http.answer import NoAnswer
from broker.model import PublishRequest
from broker.routing import nodeheaders
from broker.storage.marks import Marks
from broker.wire import avro
from tests.kit.ring import TOPIC, Ring, answer_lost, passed, request_lost
from tests.kit.serving import RawHttp, eventually, topic_path

PUBLISH = topic_path("t", "publish")
STORE = topic_path("t", "store")
ROLLBACK = topic_path("t", "rollback")
POLL = topic_path("t", "poll")
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
AVRO = {"Content-Type": "avro/binary"}
POINTER_PER_MS = 1_000_000


async def publish(ring: Ring, node: int, payload: bytes, **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ring.nodes[node].http("POST", PUBLISH, payload, {**TEXT, **named})


async def payloads(ring: Ring, node: int = 0) -> list[str]:
    reply = await ring.nodes[node].http("POST", POLL, b"{}", JSON)
    assert reply.status == 200
    return [message["payload"] for message in reply.json]


async def test_any_node_takes_a_publish_and_the_leader_stores_it(ring: Ring) -> None:
    for number in range(3):
        reply = await publish(ring, number, b"m%d" % number)
        assert reply.status == 200
        assert reply.headers["Broker-Leader"].startswith(ring.infos[0].url + ";node=0;epoch=")
    for node in range(3):
        assert await payloads(ring, node) == ["m0", "m1", "m2"]
    assert ring.nodes[0].forwarded() == 0
    assert ring.nodes[1].forwarded() == 2


async def test_all_requests_about_a_topic_are_answered_alike_by_all_nodes(ring: Ring) -> None:
    far = ring.nodes[1].http
    assert (await far("PUT", topic_path("u"))).status == 200
    assert (await far("PUT", topic_path("u"))).status == 409
    pointer = ring.nodes[0].clock.now_ms() * POINTER_PER_MS
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    stored = await far("POST", topic_path("u", "store"), body, AVRO)
    assert stored.status == 200
    reference = avro.encode_publish_request(PublishRequest(pointer, []))
    published = await far("POST", topic_path("u", "publish"), reference, AVRO)
    assert (published.status, published.headers["Content-Type"]) == (200, "avro/binary")
    rolled_back = await far("POST", topic_path("u", "rollback"), published.body, AVRO)
    assert rolled_back.status == 200
    for target in ("", "/stats", "/messages?payload=full", "/leader"):
        replies = [await node.http("GET", topic_path("u") + target) for node in ring.nodes]
        assert [reply.status for reply in replies] == [200] * 3
        if target != "/stats":
            assert replies[0].body == replies[1].body == replies[2].body
    assert (await far("DELETE", topic_path("u"))).status == 200
    gone = await far("GET", topic_path("u"))
    assert (gone.status, gone.headers["Broker-Error"]) == (404, "topic_not_found")


async def test_the_leader_says_who_it_is(ring: Ring) -> None:
    target = topic_path("t", "leader")
    before = (await ring.nodes[2].http("GET", target)).json
    assert before == {"node": 0, "url": ring.infos[0].url, "epoch": None}
    await publish(ring, 0, b"a")
    assert (await ring.nodes[2].http("GET", target)).json["epoch"] == 1
    await ring.move(1)
    await publish(ring, 0, b"b")
    after = (await ring.nodes[2].http("GET", target)).json
    assert after == {"node": 1, "url": ring.infos[1].url, "epoch": 2}


async def test_what_goes_with_a_request(ring: Ring) -> None:
    await publish(ring, 1, b"a", X_Request_Id="asked-1")
    reply = await publish(ring, 1, b"b", X_Request_Id="asked-2", Request_Timeout="7")
    assert reply.headers["X-Request-Id"] == "asked-2"
    (_, first), (_, again), (url, ask) = ring.nodes[1].peers.asked
    # Without an epoch a write is only told the one of now, and comes again with it, as new as it was.
    assert "Broker-Epoch" not in first.headers
    assert (again.headers["Broker-Attempt"], again.headers["Broker-Epoch"]) == ("1", "1")
    assert url == ring.infos[0].url
    assert ask.headers["X-Request-Id"] == "asked-2"
    assert ask.headers["Broker-From"] == "1/life-1"
    assert ask.headers["Broker-Protocol"] == "1"
    assert ask.headers["Broker-Attempt"] == "1"
    assert len(ask.headers["Broker-Key"]) == 32
    assert "Request-Timeout" not in ask.headers
    left_ms = int(ask.headers["Broker-Deadline"]) - ring.nodes[1].clock.now_ms()
    assert 0 < left_ms <= 7000


async def test_a_clients_own_key_is_passed_on(ring: Ring) -> None:
    await publish(ring, 1, b"a", Idempotency_Key="mine")
    again = await publish(ring, 2, b"a", Idempotency_Key="mine")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert await payloads(ring) == ["a"]
    assert all("Broker-Key" not in ask.headers for _, ask in ring.nodes[1].peers.asked)


@pytest.mark.parametrize("parameter", ["a=\u017c".encode(), b"a=\xe9"])
async def test_headers_of_any_characters_are_taken_by_any_node(ring, parameter: bytes) -> None:
    content_type = b"text/plain; " + parameter
    for node in ring.nodes:
        async with RawHttp(node.server.port) as http:
            await http.send(
                f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\n".encode()
                + b"Content-Type: "
                + content_type
                + b"\r\nContent-Length: 1\r\n\r\na"
            )
            assert (await http.reply()).status == 200
    assert await payloads(ring) == ["a", "a", "a"]


async def test_whoever_waits_for_a_leader_looks_again_when_there_is_news(ring: Ring) -> None:
    node = ring.nodes[1]
    waits, news = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        waits.set()
        await news.wait()

    node.routing.pause = pause
    node.tenure.belief = -1
    waiting = asyncio.ensure_future(publish(ring, 1, b"a"))
    async with asyncio.timeout(30):
        await waits.wait()
        assert not waiting.done()
        node.tenure.belief = None
        news.set()
        assert (await waiting).status == 200


@pytest.mark.parametrize("lost", [answer_lost, request_lost])
async def test_a_publish_that_got_no_answer_is_sent_again_and_stored_once(ring, lost) -> None:
    await publish(ring, 1, b"first")
    ring.nodes[1].peers.hooks.append(lost)
    assert (await publish(ring, 1, b"a")).status == 200
    assert await payloads(ring) == ["first", "a"]
    asked = [ask.headers for _, ask in ring.nodes[1].peers.asked[2:]]
    assert len({headers["Broker-Key"] for headers in asked}) == 1
    assert [headers["Broker-Attempt"] for headers in asked] == ["1", "2"]


async def test_a_key_is_looked_up_only_where_an_attempt_may_have_been_done(ring, monkeypatch):
    real, looked_up = Marks.find, []

    async def find(marks, *asked):
        looked_up.append(asked)
        return await real(marks, *asked)

    monkeypatch.setattr(Marks, "find", find)
    ring.nodes[1].tenure.belief = 2  # Where it is told who leads; who leads tells the epoch.
    await publish(ring, 1, b"a")
    assert (len(ring.nodes[1].peers.asked), looked_up) == (3, [])
    ring.nodes[1].peers.hooks.append(request_lost)
    await publish(ring, 1, b"b")
    assert len(looked_up) == 1
    assert await payloads(ring) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [answer_lost, request_lost])
@pytest.mark.parametrize("to", [1, 2])
async def test_also_if_the_leader_died_after_it(ring: Ring, lost, to: int) -> None:
    await publish(ring, 1, b"first")

    async def die(send):
        try:
            return await lost(send)
        finally:
            await ring.nodes[0].kill()
            await ring.move(to)

    ring.nodes[1].peers.hooks.append(die)
    assert (await publish(ring, 1, b"a")).status == 200
    assert await payloads(ring, 1) == ["first", "a"]
    assert await payloads(ring, 2) == ["first", "a"]


@pytest.mark.slow
async def test_a_leader_that_is_silent_is_given_up_once_another_leads(ring: Ring) -> None:
    await publish(ring, 1, b"first")
    ring.nodes[0].pause()
    asking = [asyncio.create_task(publish(ring, 1, b"a")), asyncio.create_task(poll_wait(ring, 1))]
    await eventually(lambda: len(ring.nodes[1].peers.asked) >= 4, lambda: "nobody asked")
    await ring.move(2)
    assert (await asking[0]).status == 200
    assert (await asking[1]).status == 200
    polls = [url for url, ask in ring.nodes[1].peers.asked if "/poll" in ask.path]
    assert polls == [ring.infos[0].url, ring.infos[2].url]
    assert await payloads(ring, 1) == ["first", "a"]


async def poll_wait(ring: Ring, node: int):
    now = ring.nodes[0].clock.now_ms() + 1000
    body = b'{"start": %d}' % now
    return await ring.nodes[node].http("POST", POLL + "?wait=1.5", body, JSON)


@pytest.mark.parametrize("node", [0, 1])
async def test_a_node_that_stops_answers_those_who_wait_for_a_leader_that_does_not_come(
    ring: Ring, node: int
) -> None:
    await publish(ring, 1, b"first")
    await ring.move(-1)
    waiting = asyncio.create_task(publish(ring, node, b"a"))
    await eventually(lambda: ring.nodes[node].server.busy == 1, lambda: "nobody waits")
    ring.nodes[node].routing.waits_until = ring.nodes[node].clock.monotonic()
    for reply in (await waiting, await publish(ring, node, b"b")):
        assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")


@pytest.mark.parametrize("path", [STORE, ROLLBACK])
async def test_stores_and_rollbacks_are_sent_again_too(ring: Ring, path: str) -> None:
    far = ring.nodes[1]
    pointer = far.clock.now_ms() * POINTER_PER_MS
    body = avro.encode_publish_request(PublishRequest(pointer, [b"a"]))
    if path == ROLLBACK:
        body = (await far.http("POST", PUBLISH, body, AVRO)).body
    far.peers.hooks.append(answer_lost)
    assert (await far.http("POST", path, body, AVRO)).status == 200
    shown = (await far.http("GET", topic_path("t", "messages"))).json["messages"]
    if path == STORE:
        reference = avro.encode_publish_request(PublishRequest(pointer, []))
        await far.http("POST", PUBLISH, reference, AVRO)
        assert await payloads(ring) == ["a"]
    else:
        assert [message["tx_state"] for message in shown] == ["rolled_back"]


async def never_answered(_):
    raise NoAnswer("cut")


@pytest.mark.slow
async def test_what_stays_unknown_is_said_to_be_so(ring: Ring) -> None:
    ring.nodes[1].peers.hooks.extend([never_answered] * 1000)
    reply = await publish(ring, 1, b"a", Request_Timeout="0.2")
    assert (reply.status, reply.headers["Broker-Error"]) == (500, "outcome_unknown")
    assert reply.headers["Broker-Outcome"] == "unknown"
    assert "Retry-After" not in reply.headers
    own = await publish(ring, 1, b"a", Request_Timeout="0.2", Idempotency_Key="mine")
    assert (own.status, own.headers["Broker-Error"]) == (503, "outcome_unknown")
    assert "Retry-After" in own.headers
    assert b'broker_unknown_outcomes_total{kind="publish",node="1"} 2.0' in (
        ring.nodes[1].metrics.render()
    )


async def test_creating_is_never_sent_twice_once_it_may_have_been_done(ring: Ring) -> None:
    ring.nodes[1].peers.hooks.append(answer_lost)
    reply = await ring.nodes[1].http("PUT", topic_path("u"))
    assert (reply.status, reply.headers["Broker-Outcome"]) == (500, "unknown")
    assert len(ring.nodes[1].peers.asked) == 1


async def test_without_a_leader_requests_wait_for_one(ring: Ring) -> None:
    ring.leader = -1
    waiting = [asyncio.create_task(publish(ring, node, b"a")) for node in (1, 2)]
    refused = await publish(ring, 1, b"never", Request_Timeout="0.1")
    assert (refused.status, refused.headers["Broker-Error"]) == (503, "no_leader")
    assert refused.headers["Broker-Outcome"] == "refused"
    await ring.move(2)
    assert [(await one).status for one in waiting] == [200, 200]
    assert await payloads(ring, 2) == ["a", "a"]


@pytest.mark.slow
async def test_a_change_of_properties_waits_for_a_leader_as_long_as_its_request(ring: Ring) -> None:
    await publish(ring, 0, b"a")
    ring.leader = 1  # The former leader has not let go.
    target = topic_path("t", "properties")
    async with asyncio.timeout(20):
        reply = await ring.nodes[1].http("PUT", target, b"{}", {"Request-Timeout": "0.2"})
    assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")
    assert reply.headers["Broker-Outcome"] == "refused"


async def test_nodes_that_send_each_other_in_circles_end_at_the_deadline(ring: Ring) -> None:
    ring.nodes[1].tenure.belief, ring.nodes[2].tenure.belief = 2, 1
    reply = await publish(ring, 1, b"a", Request_Timeout="0.3")
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
    # No node passed on what another node had passed on to it.
    assert not ring.nodes[2].peers.asked
    assert len(ring.nodes[1].peers.asked) < 50
    waiting = asyncio.create_task(publish(ring, 1, b"b"))
    ring.nodes[2].tenure.belief = 0
    assert (await waiting).status == 200
    assert await payloads(ring) == ["b"]


async def test_a_421_is_never_seen_by_a_client_and_tells_where_to_go(ring: Ring) -> None:
    ring.nodes[1].tenure.belief = 2
    assert (await publish(ring, 1, b"a")).status == 200
    urls = [url for url, _ in ring.nodes[1].peers.asked]
    assert urls[:2] == [ring.infos[2].url, ring.infos[0].url]


async def test_a_leader_that_moved_while_requests_wait_for_it_sends_them_on(ring: Ring) -> None:
    await publish(ring, 0, b"first")
    at = [asyncio.create_task(publish(ring, n % 3, b"%d" % n)) for n in range(30)]
    for to in (1, 2, 0, 2):
        await ring.move(to)
    assert {(await one).status for one in at} == {200}
    got = await payloads(ring, 2)
    assert sorted(got) == sorted(["first", *map(str, range(30))])


async def test_a_client_that_pretends_to_be_a_node_is_refused(ring: Ring) -> None:
    for name in nodeheaders.NAMES:
        reply = await ring.nodes[0].http("POST", PUBLISH, b"a", {**TEXT, name: "1"})
        assert (reply.status, reply.headers["Broker-Error"]) == (403, "forbidden")
    assert await payloads(ring) == []


async def test_a_node_that_knows_another_secret_is_asked_again_until_the_deadline(ring) -> None:
    ring.nodes[1].routing.forwarder._secret = "0" * 64
    reply = await publish(ring, 1, b"a", Request_Timeout="0.1")
    assert (reply.status, reply.headers["Broker-Error"]) == (503, "no_leader")


async def test_pipelined_publishes_of_one_connection_keep_their_order_through_losses(ring) -> None:
    far = ring.nodes[1]
    await publish(ring, 1, b"--")
    far.peers.hooks.extend([answer_lost, passed, request_lost, passed] * 5)
    async with RawHttp(far.server.port) as raw:
        for number in range(20):
            await raw.send(
                f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                f"Content-Length: 2\r\n\r\n{number:02}".encode()
            )
        ids = [(await raw.reply()).json["first_id"] for _ in range(20)]
    assert ids == sorted(set(ids))
    assert await payloads(ring) == ["--", *(f"{number:02}" for number in range(20))]
    assert not far.peers.hooks


async def test_metrics_tell_what_was_passed_on(ring: Ring) -> None:
    await publish(ring, 1, b"a")
    await ring.nodes[1].http("GET", topic_path("no", "stats"))
    text = ring.nodes[1].metrics.render().decode()
    assert 'broker_forwarded_total{code="ok",kind="publish",node="1"} 1.0' in text
    assert 'broker_forwarded_total{code="topic_not_found",kind="stats",node="1"} 1.0' in text
    assert 'broker_forward_seconds_count{kind="publish",node="1"} 1.0' in text
    assert TOPIC in ring.nodes[0].topics.leaders.states

"""Topics themselves, and their named cursors, by HTTP."""

import asyncio
import gzip
import json

import pytest

from broker.api import topics_admin
from broker.api.topics_admin import pinned
from broker.client import Message
from broker.config.sections import Config, TopicsConfig
from broker.http.reply import EMPTY, Answer, ChunkedReply
from broker.http.request import Request
from broker.model import timestamp_of
from broker.moments import rfc3339
from broker.storage import records
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import NAMESPACE, Broker, Http, topic_path


async def test_create_show_update_delete(broker: Broker) -> None:
    path = topic_path("x")
    created = await broker.call("PUT", path, b'{"ttl": 60, "owner": "me", "on": true}')
    assert (created.status, created.body) == (200, b"")
    assert (await broker.call("GET", path)).body == (
        b'{"generation":"1","on":"true","owner":"me","ttl":"60"}'
    )
    assert (await broker.call("PUT", path)).status == 409
    updated = await broker.call("PUT", f"{path}/properties", b'{"a": "b"}')
    assert (updated.status, updated.body) == (200, b"")
    # An update replaces everything: the ttl is the default again.
    assert (await broker.call("GET", path)).json == {"generation": "1", "a": "b", "ttl": "604800"}
    assert (await broker.call("DELETE", path)).status == 200
    for method, target in (("DELETE", path), ("GET", path), ("PUT", f"{path}/properties")):
        reply = await broker.call(method, target)
        assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
    await broker.call("PUT", path, b'{"ttl": 7}')
    assert (await broker.call("GET", path)).json == {"generation": "2", "ttl": "7"}


@pytest.mark.parametrize("target", [topic_path("x"), topic_path("t", "properties")])
async def test_compressed_properties_are_refused(http: Http, target: str) -> None:
    body = json.dumps({"ttl": 60, "note": "x" * 60_000}).encode()
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused = await http("PUT", target, gzip.compress(body), packed)
    assert (refused.status, refused.headers["Broker-Error"]) == (400, "bad_request")
    assert b"Content-Encoding" in refused.body
    plain = {"Content-Type": "application/json", "Content-Encoding": "identity"}
    assert (await http("PUT", target, body, plain)).status == 200


async def test_a_purge_removes_messages_published_before_a_moment(broker: Broker) -> None:
    publish, purge = topic_path("t", "publish"), topic_path("t", "purge")
    text = {"Content-Type": "text/plain"}
    await broker.call("POST", publish, b"old", text)
    last = (await broker.call("GET", topic_path("t", "stats"))).json["last"]
    told = (await broker.call("POST", f"{purge}?before=now")).json
    moment_ms = timestamp_of(bytes.fromhex(last["id"])) + 1
    assert told == {"purged_before": rfc3339(moment_ms), "purged_ms": moment_ms}
    assert (await broker.call("GET", topic_path("t"))).json["purged_ms"] == str(moment_ms)
    assert (await broker.call("POST", f"{purge}?before=0")).json == told
    await broker.call("POST", publish, b"new", text)
    page = (await broker.call("GET", topic_path("t", "messages"))).json
    assert [row["payload"] for row in page["messages"]] == ["new"]
    # A client may send the shown properties back; the broker keeps its own.
    sent = b'{"ttl": 9, "generation": "1", "purged_ms": "0"}'
    assert (await broker.call("PUT", topic_path("t", "properties"), sent)).status == 200
    assert (await broker.call("GET", topic_path("t"))).json["purged_ms"] == str(moment_ms)
    refused = await broker.call("PUT", topic_path("new"), b'{"purged_ms": "soon"}')
    assert (refused.status, b"belongs to the broker" in refused.body) == (400, True)


async def test_now_is_the_time_at_the_first_node_of_a_request(broker: Broker) -> None:
    asked: list[str] = []

    async def purge(request: Request) -> Answer:
        asked.append(request.query["before"])
        return EMPTY

    began_ms = broker.clock.now_ms()
    for query in ("before=now", "before=1234"):
        await pinned(broker.topics, purge)(Request("POST", "/", query, {}, b""))
    now, given = asked
    assert began_ms <= int(now) - 1001 <= broker.clock.now_ms()
    assert given == "1234"


async def test_a_purge_that_names_no_moment_is_refused(broker: Broker) -> None:
    purge = topic_path("t", "purge")
    await broker.call("POST", topic_path("t", "publish"), b"kept", {"Content-Type": "text/plain"})
    future_ms = broker.clock.now_ms() + 60_000
    for wrong in ("", "?before=", "?before=soon", f"?before={'0' * 40}", f"?before={future_ms}"):
        reply = await broker.call("POST", purge + wrong)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request"), wrong
        assert b"before" in reply.body
    assert (await broker.call("POST", topic_path("no", "purge?before=now"))).status == 404
    page = (await broker.call("GET", topic_path("t", "messages"))).json
    assert len(page["messages"]) == 1


async def test_listing_is_in_the_order_of_keys(broker: Broker) -> None:
    for name in ("a", "aa", "a-b", "a1"):
        await broker.call("PUT", topic_path(name))
    assert (await broker.call("GET", f"{NAMESPACE}/topics")).json == ["a-b", "a1", "a", "aa", "t"]
    assert (await broker.call("GET", "/v1/namespaces/unknown/topics")).json == []
    assert (await broker.call("GET", "/v1/namespaces/a-b/topics")).status == 400


@pytest.mark.parametrize("at_once", [0, 1, 2, 7, 11, 12, 100])
async def test_a_long_listing_is_sent_while_it_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(topics_admin, "NAMES_AT_ONCE", at_once)
    monkeypatch.setattr(records, "ROWS_AT_ONCE", 3)
    names = [f"n{number:02d}" for number in range(11)]
    for name in names:
        await broker.call("PUT", topic_path(name))
    await broker.call("PUT", topic_path("deleted"))
    await broker.call("DELETE", topic_path("deleted"))
    answer = await broker.answer("GET", f"{NAMESPACE}/topics")
    if isinstance(answer, ChunkedReply):
        body = b"".join([bytes(piece) async for piece in answer.chunks])
    else:
        body = answer.body
    assert isinstance(answer, ChunkedReply) == (at_once < len(names) + 1)
    assert body == json.dumps([*names, "t"], separators=(",", ":")).encode()


@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_namespaces_with_topics_are_listed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(topics_admin, "NAMES_AT_ONCE", at_once)
    for path in ("/v1/namespaces/b/topics/x", "/v1/namespaces/B/topics/x"):
        await broker.call("PUT", path)
    assert (await broker.call("GET", "/v1/namespaces")).json == ["B", "b", "default"]
    await broker.call("DELETE", "/v1/namespaces/b/topics/x")
    assert (await broker.call("GET", "/v1/namespaces")).json == ["B", "default"]


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"[]",
        b"{",
        b'{"ttl": null}',
        b'{"ttl": 0}',
        b'{"ttl": -5}',
        b'{"ttl": "x"}',
        b'{"ttl": 2147483648}',
        b'{"a": {}}',
        b'{"a": [1]}',
        b'{"generation": "x"}',
        b'{"transactions": "maybe"}',
        b"\xff",
    ],
)
async def test_malformed_properties(broker: Broker, body: bytes) -> None:
    for target in (topic_path("new"), topic_path("t", "properties")):
        reply = await broker.call("PUT", target, body)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert (await broker.call("GET", topic_path("new"))).status == 404


async def test_default_properties_come_from_the_configuration() -> None:
    defaults = TopicsConfig(topic_ttl_default_s=99, topic_properties_default={"team": "core"})
    broker = Broker(Config(topics=defaults))
    await broker.call("PUT", topic_path("t"), b'{"a": 1}')
    shown = (await broker.call("GET", topic_path("t"))).json
    assert shown == {"a": "1", "generation": "1", "team": "core", "ttl": "99"}
    await broker.close()


@pytest.mark.parametrize("name", ["a.b", "a%20b", "%C3%A4", "a:b"])
async def test_invalid_names(broker: Broker, name: str) -> None:
    reply = await broker.call("PUT", topic_path(name))
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_name")


async def test_transactions_required_and_refused(broker: Broker) -> None:
    avro = {"Content-Type": "avro/binary"}
    await broker.call("PUT", topic_path("req"), b'{"transactions": "required"}')
    await broker.call("PUT", topic_path("ref"), b'{"transactions": "refused"}')
    plain = bytes.fromhex("0202026100")
    assert (await broker.call("POST", topic_path("req", "publish"), plain, avro)).status == 400
    assert (await broker.call("POST", topic_path("ref", "publish"), plain, avro)).status == 200
    under = b'{"write_pointer": "%d", "messages": ["x"]}' % (broker.clock.now_ms() * 1_000_000)
    as_json = {"Content-Type": "application/json"}
    for action in ("publish", "store"):
        target = topic_path("ref", action)
        assert (await broker.call("POST", target, under, as_json)).status == 400
        target = topic_path("req", action)
        assert (await broker.call("POST", target, under, as_json)).status == 200


# --- Named cursors ---------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json", "Accept": "application/json"}
TEXT = {"Content-Type": "text/plain"}


async def put(broker: Broker, name: str, after: str | None, expected: str | None, **more):
    body = json.dumps({"after": after, "expected": expected, **more}).encode()
    return await broker.call("PUT", topic_path("t", f"cursors/{name}"), body, JSON)


async def publish(broker: Broker, count: int) -> list[str]:
    ids = []
    for number in range(count):
        body, target = b"m%d" % number, topic_path("t", "publish")
        ids.append((await broker.call("POST", target, body, TEXT)).headers["Broker-Last-Id"])
    return ids


async def test_a_cursor_is_put_shown_and_deleted(broker: Broker) -> None:
    target = topic_path("t", "cursors/mailer")
    ids = await publish(broker, 3)
    missing = await broker.call("GET", target)
    assert (missing.status, missing.headers["Broker-Error"]) == (404, "not_found")
    made = (await put(broker, "mailer", None, None)).json
    assert (made["name"], made["after"], made["data"], made["generation"]) == (
        *("mailer", None, ""),
        1,
    )
    lag = (await broker.call("GET", target)).json["lag"]
    assert (lag["messages"], lag["lost"], lag["oldest"]["id"]) == (3, 0, ids[0])
    moved = (await put(broker, "mailer", ids[1].upper(), made["version"], data="pid 7 é")).json
    assert (moved["after"], moved["data"]) == (ids[1], "pid 7 é")
    shown = (await broker.call("GET", target)).json
    assert (shown["version"], shown["lag"]["messages"]) == (moved["version"], 1)
    assert shown["lag"]["oldest"]["id"] == ids[2]
    await put(broker, "mailer", ids[2], moved["version"])
    assert (await broker.call("GET", target)).json["lag"] == {
        "messages": 0,
        "lost": 0,
        "oldest": None,
    }
    assert (await broker.call("DELETE", target)).json == {"deleted": True}
    assert (await broker.call("DELETE", target)).json == {"deleted": False}


async def test_a_lost_race_tells_the_place_that_is_there(broker: Broker) -> None:
    made = (await put(broker, "mailer", None, None)).json
    moved = (await put(broker, "mailer", "ab" * 20, made["version"])).json
    lost = await put(broker, "mailer", "cd" * 20, made["version"])
    assert (lost.status, lost.headers["Broker-Error"], lost.headers["Broker-Outcome"]) == (
        *(409, "cursor_moved"),
        "refused",
    )
    told = lost.json["cursor"]
    assert (told["after"], told["version"]) == ("ab" * 20, moved["version"])
    assert "ab" * 20 in lost.json["message"]
    absent = await put(broker, "other", None, "some version")
    assert (absent.status, absent.json["cursor"]) == (409, None)
    # Repeated, it is answered as the first time.
    assert (await put(broker, "mailer", "ab" * 20, made["version"])).json == moved


async def test_cursors_are_listed_in_pages_with_their_lag(broker: Broker) -> None:
    ids = await publish(broker, 2)
    for name, after in (("b", ids[0]), ("a", ids[1]), ("c", None)):
        assert (await put(broker, name, after, None)).status == 200
    target = topic_path("t", "cursors")
    first = (await broker.call("GET", f"{target}?limit=2")).json
    lags = [(each["name"], each["lag"]["messages"]) for each in first["cursors"]]
    assert (lags, first["next"]) == ([("a", 0), ("b", 1)], "b")
    rest = (await broker.call("GET", f"{target}?after=b")).json
    assert ([each["name"] for each in rest["cursors"]], rest["next"]) == (["c"], None)
    for wrong in ("limit=0", "limit=101", "limit=x", "from=a"):
        assert (await broker.call("GET", f"{target}?{wrong}")).status == 400


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"\xff", b'{"after": null}', b'{"expected": null}'),
        b'{"after": "12", "expected": null}',
        b'{"after": 1, "expected": null}',
        b'{"after": null, "expected": 1}',
        b'{"after": null, "expected": null, "data": null}',
        b'{"after": null, "expected": null, "more": 1}',
        json.dumps({"after": None, "expected": None, "data": "é" * 513}).encode(),
    ],
)
async def test_a_body_that_is_no_cursor_is_refused(broker: Broker, body: bytes) -> None:
    reply = await broker.call("PUT", topic_path("t", "cursors/c"), body, JSON)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert (await broker.call("GET", topic_path("t", "cursors"))).json["cursors"] == []


@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%C3%A9", "a" * 129, "a:b"])
async def test_names_are_checked(broker: Broker, name: str) -> None:
    for method, body in (("PUT", b'{"after": null, "expected": null}'), ("GET", b"")):
        reply = await broker.call(method, topic_path("t", f"cursors/{name}"), body, JSON)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_name")


async def test_a_topic_that_is_created_anew_has_no_cursors(broker: Broker) -> None:
    made = (await put(broker, "mailer", None, None)).json
    await broker.call("DELETE", topic_path("t"))
    assert (await put(broker, "mailer", None, None)).status == 404
    assert (await broker.call("GET", topic_path("t", "cursors"))).status == 404
    await broker.call("PUT", topic_path("t"))
    assert (await broker.call("GET", topic_path("t", "cursors"))).json["cursors"] == []
    assert (await put(broker, "mailer", None, made["version"])).status == 409
    assert (await put(broker, "mailer", None, None)).json["generation"] == 2


async def test_a_topic_has_no_more_cursors_than_it_may_have() -> None:
    broker = Broker(Config(topics=TopicsConfig(cursors_max=2)))
    await broker.call("PUT", topic_path("t"))
    for name, status in (("a", 200), ("b", 200), ("c", 409)):
        reply = await put(broker, name, None, None)
        assert reply.status == status
    assert reply.headers["Broker-Error"] == "too_many_cursors"
    await broker.close()


@on_cluster()
async def test_any_node_answers_for_cursors_with_a_leader_or_without_one(
    cluster: HttpCluster,
) -> None:
    version, target = None, topic_path("t", "cursors/c")
    nodes = [0, 1, 2]
    for number in range(3):
        for node in nodes:
            after = f"{number}{node}" * 20
            body = json.dumps({"after": after, "expected": version}).encode()
            put = await cluster(node, "PUT", target, body, {**JSON, "Request-Timeout": "1"})
            assert put.status == 200
            version = put.json["version"]
        if number == 0:
            await cluster.lead(1)
        elif number == 1:
            cluster.machines[1].kill()  # No other node has taken over yet.
            nodes = [0, 2]
    for node in nodes:
        assert (await cluster(node, "GET", target)).json["version"] == version
        assert (await cluster(node, "GET", topic_path("t", "cursors"))).json["next"] is None
        assert (await cluster(node, "PUT", target, body, JSON)).json["version"] == version


@on_cluster()
async def test_a_subscriber_goes_on_while_leadership_moves(cluster: HttpCluster) -> None:
    handled: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.payload)
        if len(handled) % 20 == 0:
            done.set()

    async with cluster.client(2) as client:
        subscriber = client.subscriber("t", "s", handle, place_messages_max=5)
        running = asyncio.ensure_future(subscriber.run())
        for number in range(3):
            await cluster.lead(number)
            done.clear()
            await client.publish("t", [b"%d" % each for each in range(20)])
            async with asyncio.timeout(30):
                await done.wait()
        subscriber.stop()
        await running
        assert (await client.cursors.get("t", "s")).lag.messages == 0
    assert handled == [b"%d" % each for each in range(20)] * 3

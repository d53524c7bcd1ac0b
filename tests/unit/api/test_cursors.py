"""Named cursors by HTTP: every answer is compared with the OpenAPI document."""

import asyncio
import json

import pytest

from broker.client import Message
from broker.config.sections import Config, TopicsConfig
from tests.kit.http_cluster import HttpCluster, on_cluster
from tests.kit.serving import Broker, topic_path

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

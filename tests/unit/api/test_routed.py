"""What stands around handlers in a cluster. How nodes answer together is in tests/unit/routing."""

from collections.abc import AsyncIterator

import pytest

from broker.api.routed import KINDS
from broker.api.routes import SHAPES, TOPIC, TRANSACTIONS
from broker.errors import NoLeader, Overloaded
from broker.http.reply import EMPTY, EMPTY_REPLAYED
from broker.model import PublishRequest, RollbackRange
from broker.routing.decisions import RepeatEffect
from broker.wire import avro
from tests.kit.ring import Ring, request_lost, ring_of
from tests.kit.serving import topic_path

PUBLISH = topic_path("t", "publish")
TEXT = {"Content-Type": "text/plain"}
AVRO = {"Content-Type": "avro/binary"}
BODIES = {
    "publish": (b"a", TEXT),
    "store": (avro.encode_publish_request(PublishRequest(1 << 62, [b"a"])), AVRO),
    "rollback": (avro.encode_publish_response(RollbackRange(5, bytes(10), bytes(10))), AVRO),
}


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    """Two nodes that listen, with a topic ``t``, led by the first."""
    async with ring_of(2) as ring:
        assert (await ring.nodes[0].http("PUT", topic_path("t"))).status == 200
        yield ring


def test_every_route_about_a_topic_is_answered_by_its_leader() -> None:
    about_topics = {
        shape.name for shape in SHAPES if shape.template.startswith((TOPIC, TRANSACTIONS))
    }
    # Polls have a handler of their own, streams of events are made of polls, and any node reads in bulk.
    anywhere = {"poll", "events", "arrow", "arrow_as"}
    # Cursors are records, which change by compare-and-set wherever the request comes.
    anywhere |= {"cursors", "show_cursor", "put_cursor", "delete_cursor"}
    # Pruning reads records, and asks the service like a client.
    anywhere |= {"prune_plan", "prune_transactions"}
    assert about_topics == set(KINDS) | anywhere


VERBS = ("start", "can_commit", "commit", "abort", "invalidate", "checkpoint")


def test_only_what_is_harmless_is_sent_twice() -> None:
    writes = {"publish", "store", "rollback", "create_topic", "update_topic", "delete_topic"}
    writes |= {"begin_stage", "store_staged", "publish_stages", "purge"}
    writes |= {f"{verb}_transaction" for verb in VERBS} | {
        "truncate_transactions",
        "reset_transactions",
    }
    keyed = {"publish", "store", "store_staged"}
    assert {name for name, kind in KINDS.items() if not kind.is_reading} == writes
    assert {name for name, kind in KINDS.items() if kind is RepeatEffect.KEYED} == keyed


async def test_a_leader_tells_its_epoch_in_every_answer(ring: Ring) -> None:
    unclaimed = await ring.nodes[0].http("GET", topic_path("t"))
    assert "Broker-Leader" not in unclaimed.headers
    first = await ring.nodes[0].http("POST", PUBLISH, b"a", {**TEXT, "Idempotency-Key": "k"})
    again = await ring.nodes[0].http("POST", PUBLISH, b"a", {**TEXT, "Idempotency-Key": "k"})
    shown = await ring.nodes[0].http("GET", topic_path("t"))
    polled = await ring.nodes[0].http(
        "POST", topic_path("t", "poll"), b"{}", {"Content-Type": "application/json"}
    )
    leader = f"{ring.infos[0].url};node=0;epoch=1"
    assert {r.headers["Broker-Leader"] for r in (first, again, shown, polled)} == {leader}
    assert again.headers["Idempotency-Replayed"] == "true"
    # The replies that all nodes share know of no leader.
    assert not EMPTY.headers
    assert len(EMPTY_REPLAYED.headers) == 1


@pytest.mark.parametrize("kind", ["avro/binary", "application/json"])
async def test_every_node_tells_what_a_publish_made(ring: Ring, kind: str) -> None:
    body = b'["a", "b"]' if kind == "application/json" else bytes.fromhex("02040261026200")
    replies = [
        await node.http("POST", PUBLISH, body, {"Content-Type": kind}) for node in ring.nodes
    ]
    page = await ring.nodes[1].http("GET", topic_path("t", "messages"))
    ids = [message["id"] for message in page.json["messages"]]
    for number, reply in enumerate(replies):
        first, last = ids[2 * number], ids[2 * number + 1]
        headers = [reply.headers[f"Broker-{name}"] for name in ("First-Id", "Last-Id", "Count")]
        assert headers == [first, last, "2"]
        if reply.body:
            assert (reply.json["first_id"], reply.json["last_id"]) == (first, last)


async def test_a_refusal_that_another_look_can_mend_is_not_the_answer(ring, monkeypatch) -> None:
    topics, asked = ring.nodes[0].topics, []
    real = topics.publish

    async def publish(*arguments):
        asked.append(arguments)
        if len(asked) == 1:
            raise NoLeader("not yet")
        return await real(*arguments)

    monkeypatch.setattr(topics, "publish", publish)
    assert (await ring.nodes[0].http("POST", PUBLISH, b"a", TEXT)).status == 200
    assert len(asked) == 2


async def test_any_other_refusal_is(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(*_):
        raise Overloaded("full")

    monkeypatch.setattr(ring.nodes[0].topics, "publish", publish)
    for node in ring.nodes:
        reply = await node.http("POST", PUBLISH, b"a", TEXT)
        assert (reply.status, reply.headers["Broker-Error"]) == (503, "overloaded")


async def test_a_doubt_is_settled_here_if_the_topic_came_here(ring: Ring) -> None:
    await ring.nodes[1].http("POST", PUBLISH, b"first", TEXT)

    async def done_but_lost(send):
        await send()
        await ring.move(1)
        return await request_lost(send)

    ring.nodes[1].peers.hooks.append(done_but_lost)
    reply = await ring.nodes[1].http("POST", PUBLISH, b"a", TEXT)
    assert (reply.status, reply.headers["Idempotency-Replayed"]) == (200, "true")
    page = await ring.nodes[1].http("GET", topic_path("t", "messages"))
    assert [message["payload"] for message in page.json["messages"]] == ["first", "a"]


async def test_before_its_leader_is_claimed_a_topic_is_not_read_by_who_will_claim_it(
    ring, monkeypatch
) -> None:
    topics, read = ring.nodes[0].topics, []

    def noting(owner, name: str) -> None:
        real = getattr(owner, name)

        async def noted(*arguments):
            read.append(name)
            return await real(*arguments)

        monkeypatch.setattr(owner, name, noted)

    noting(ring.records, "get")
    noting(topics.around.logs, "look")
    assert (await ring.nodes[0].http("POST", PUBLISH, b"a", TEXT)).status == 200
    # Which generation to claim; the claim; what the leader before may have changed until then.
    assert read == ["get", "look", "get"]


async def test_names_that_are_no_topics_leave_nothing_behind(ring: Ring) -> None:
    known = set(ring.nodes[0].topics.leaders.states)
    for number in range(20):
        for operation in ("publish", "store", "rollback"):
            reply = await ring.nodes[number % 2].http(
                "POST", topic_path(f"no{number}", operation), *BODIES[operation]
            )
            assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
    assert [set(node.topics.leaders.states) for node in ring.nodes] == [known, set()]


@pytest.mark.parametrize("query", ["?ttl=0", "?ttl=604801", "?tll=1"])
async def test_what_no_leader_would_take_is_refused_by_the_first_one(ring: Ring, query) -> None:
    for node in ring.nodes:
        reply = await node.http("POST", PUBLISH + query, b"a", TEXT)
        assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")


async def test_a_purge_through_any_node_holds_at_every_node(ring: Ring) -> None:
    text = {"Content-Type": "text/plain"}
    await ring.nodes[0].http("POST", topic_path("t", "publish"), b"old", text)
    purged = await ring.nodes[1].http("POST", topic_path("t", "purge?before=now"))
    assert purged.status == 200
    await ring.nodes[1].http("POST", topic_path("t", "publish"), b"new", text)
    for node in ring.nodes:
        page = (await node.http("GET", topic_path("t", "messages"))).json
        assert [row["payload"] for row in page["messages"]] == ["new"]
        shown = (await node.http("GET", topic_path("t"))).json
        assert shown["purged_ms"] == str(purged.json["purged_ms"])

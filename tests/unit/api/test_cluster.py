"""The views of a cluster, its nodes as witnesses of the time, and the changes of the places where topics are led."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.coordination.claims import Written
from broker.coordination.placement import DRAINED_PREFIX, drain, pin, read_placement
from broker.coordination.ports import Contact, NodeInfo
from broker.errors import OutcomeUnknown, Unavailable
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.http.outbound import Ask
from broker.model import TopicId
from broker.node.ground import CLOCK_S_MAX, CLOCKS_MAX, clocks_of
from broker.operations.parameters import TOPICS_NAMED_MAX
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.records import Record
from broker.testing.memory import MemoryRecords
from broker.testing.virtual_time import VirtualClock, VirtualLoop, pass_time, simulate
from tests.kit.members import FewNodes
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, topic_path

T = TopicId("default", "t")
NODE = "/v1/cluster/node"
STATUS = "/v1/cluster"


class DeafRecords(MemoryRecords):
    @override
    async def scan_prefix(self, prefix: bytes) -> list[tuple[bytes, Record]]:
        raise Unavailable("No gateway takes connections.")


def joined(few: FewNodes) -> Broker:
    store = Logs(MemoryTable(), few.clock)
    return Broker(stores=(store, few.records), clock=few.clock, cluster=few.view())


@pytest.fixture
def few() -> FewNodes:
    return FewNodes(MemoryRecords(), SystemClock())


@pytest.fixture
async def member(few: FewNodes) -> AsyncIterator[Broker]:
    broker = joined(few)
    assert (await broker.call("PUT", topic_path("t"))).status == 200
    yield broker
    await broker.close()


def rows(status: Any) -> dict[int, Any]:
    return {row["node"]: row for row in status["nodes"]}


async def test_a_node_reports_its_view(few: FewNodes, member: Broker) -> None:
    few.led = {T: 3, TopicId("default", "a"): 1}
    few.slots, few.skew_ms = 341, -12
    few.contact, few.session = Contact.SUSPENDED, None
    few.health.ended(None, None)
    few.health.ended("told", "timed out")
    told = (await member.call("GET", NODE)).json
    assert told["node"] == 0
    assert (told["slots_led"], told["topics_led"], told["topics"]) == (341, 2, None)
    assert told["zookeeper"] == {"contact": "suspended", "session": None}
    assert (told["storage"]["calls"], told["storage"]["errors"]) == (2, 1)
    assert told["storage"]["last_error"] == "timed out"
    assert told["clock_skew_ms"] == -12
    assert told["uptime_s"] >= 0
    named = (await member.call("GET", f"{NODE}?topics=yes")).json["topics"]
    assert named == [{"topic": "default/a", "epoch": 1}, {"topic": "default/t", "epoch": 3}]
    assert (await member.call("GET", f"{NODE}?topics=maybe")).status == 400
    assert (await member.call("GET", f"{NODE}?topics=no%20names/t")).status == 400


async def test_the_first_topics_are_named_and_any_one_on_demand(
    few: FewNodes, member: Broker
) -> None:
    few.led = {TopicId("ns", f"t{number:05}"): number for number in range(TOPICS_NAMED_MAX + 5)}
    told = (await member.call("GET", f"{NODE}?topics=yes")).json
    assert told["topics_led"] == TOPICS_NAMED_MAX + 5
    assert [one["epoch"] for one in told["topics"]] == list(range(TOPICS_NAMED_MAX))
    last = TOPICS_NAMED_MAX + 4
    seen = rows((await member.call("GET", f"{STATUS}?topics=ns/t{last:05}")).json)
    assert [row["view"]["topics"] for row in seen.values()] == [
        [{"topic": f"ns/t{last:05}", "epoch": last}]
    ] * 3
    assert (await member.call("GET", f"{NODE}?topics=ns/none")).json["topics"] == []


async def test_the_status_has_the_view_of_every_node(few: FewNodes, member: Broker) -> None:
    few.stop(2)
    few.led = {T: 3}
    await drain(few.records, 1)
    await drain(few.records, 9)
    await pin(few.records, T, 0)
    status = (await member.call("GET", STATUS)).json
    assert (status["asked"], status["contact"], status["problem"]) == (0, "connected", None)
    assert (status["drained"], status["pins"]) == ([1, 9], 1)
    seen = rows(status)
    assert [row["state"] for row in seen.values()] == ["serving", "drained", "stopping"]
    assert [row["drained"] for row in seen.values()] == [False, True, False]
    assert [row["view"]["incarnation"] for row in seen.values()] == ["life-0", "life-1", "life-2"]
    assert {row["problem"] for row in seen.values()} == {None}
    assert seen[1]["view"]["topics"] is None
    named = rows((await member.call("GET", f"{STATUS}?topics=yes")).json)
    assert named[1]["view"]["topics"] == [{"topic": "default/t", "epoch": 3}]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (None, "no answer within 0.05 s"),
        (ConnectionRefusedError("refused"), "refused"),
        (Unavailable("It is stopping."), "It is stopping."),
        (b"<html>", "unexpected character"),
        (b'{"node": 2}', "the answer came from node 2"),
        (b"[]", "the answer came from node None"),
    ],
)
async def test_a_node_that_does_not_answer_is_silent(
    few: FewNodes, member: Broker, wrong: Exception | bytes | None, told: str
) -> None:
    few.wrong[few.nodes[1].url] = wrong
    seen = rows((await member.call("GET", STATUS)).json)
    assert [row["state"] for row in seen.values()] == ["serving", "silent", "serving"]
    assert seen[1]["view"] is None
    assert told in seen[1]["problem"]


async def test_a_status_is_given_without_storage() -> None:
    few = FewNodes(DeafRecords(), SystemClock())
    member = joined(few)
    status = (await member.call("GET", STATUS)).json
    assert status["problem"] == "No gateway takes connections."
    assert (status["drained"], status["pins"]) == (None, None)
    assert [(row["state"], row["drained"]) for row in status["nodes"]] == [("serving", None)] * 3
    await member.close()


async def test_a_status_reports_unreadable_pins(few: FewNodes, member: Broker) -> None:
    await pin(few.records, T, 0)
    await few.records.put_if(b"pin/ns:odd:", None, b"{")
    status = (await member.call("GET", STATUS)).json
    assert status["pins"] == 1
    assert "pin/ns:odd:" in status["problem"]


async def test_others_get_less_time_than_the_request_has_left(few: FewNodes) -> None:
    """A node that never answers does not use up the whole deadline of the request."""
    patient = dataclasses.replace(few.view(), answer_s_max=3600.0)
    few.wrong[few.nodes[1].url] = None
    member = Broker(cluster=patient)
    found = member.dispatch.router.find("GET", STATUS)
    assert found.route.operation.name == "cluster"
    answer = await member.answer("GET", STATUS, {}, deadline=few.clock.monotonic() + 0.1)
    assert answer.status == 200
    await member.close()


class OtherNodes:
    """Other nodes that all give one answer."""

    def __init__(self, answer: HttpAnswer | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str, float]] = []

    async def exchange(self, url: str, ask: Ask, seconds: float) -> HttpAnswer:
        self.asked.append((url, ask.method, ask.path, seconds))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_another_node_is_asked(few: FewNodes) -> None:
    others: Any = OtherNodes(HttpAnswer(200, {}, b'{"node": 1}'))
    view = dataclasses.replace(few.view(), peers=others)
    assert await view.ask("http://a:1", NODE, 2.0) == b'{"node": 1}'
    assert others.asked == [("http://a:1", "GET", NODE, 2.0)]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (NotSent("refused"), "refused"),
        (NoAnswer("cut"), "cut"),
        (HttpAnswer(503, {}, b"later"), "status 503"),
    ],
)
async def test_a_failed_request_to_another_node_is_unavailable(
    few: FewNodes, answer: HttpAnswer | Exception, told: str
) -> None:
    others: Any = OtherNodes(answer)
    view = dataclasses.replace(few.view(), peers=others)
    with pytest.raises(Unavailable, match=told):
        await view.ask("http://a:1", NODE, 2.0)


async def test_a_node_leads_the_topics_whose_logs_it_holds(broker: Broker) -> None:
    leaders = broker.topics.leaders
    assert leaders.epochs() == {}
    plain = {"Content-Type": "text/plain"}
    assert (await broker.call("POST", topic_path("t", "publish"), b"x", plain)).status == 200
    assert leaders.epochs() == {T: 1}
    assert (await broker.call("DELETE", topic_path("t"))).status == 200
    assert leaders.epochs() == {}


# --- The clocks of other nodes ---------------------------------------------------------------------

NODES = [NodeInfo(number, "life", f"http://node-{number}", "1.0", 1) for number in range(1, 20)]


def clocks(answers: dict[str, object], nodes: list[NodeInfo] = NODES) -> list[Written]:
    """Ask nodes that answer after 10 ms: with the bytes or the error of ``answers``, or never (None)."""

    async def main(loop: VirtualLoop) -> list[Written]:
        clock = VirtualClock(loop)

        async def ask(url: str, _: str, __: float) -> bytes:
            await pass_time(0.01)
            answer = answers.get(url, json.dumps({"node": 0}).encode())
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, bytes)
            return answer

        found = list(await clocks_of(nodes, ask, clock))
        assert loop.time() <= CLOCK_S_MAX
        return found

    return simulate(main)


def view(number: int, **fields: object) -> bytes:
    return json.dumps({"node": number, **fields}).encode()


def test_nodes_that_answer_are_witnesses() -> None:
    found = clocks({NODES[0].url: view(1, now_ms=1_600_000_000_000 - 3000)}, NODES[:1])
    (written,) = found
    assert written.ahead_ms == 3000


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Unavailable("no answer"),
        OSError("cut"),
        b"",
        b"[1]",
        view(7, now_ms=1),
        view(1),
        view(1, now_ms="1"),
    ],
)
def test_an_implausible_answer_is_no_witness(answer: object) -> None:
    assert clocks({NODES[0].url: answer}, NODES[:2]) == []


def test_the_number_of_asked_nodes_is_bounded() -> None:
    answers: dict[str, object] = {node.url: view(node.instance, now_ms=1) for node in NODES}
    assert len(clocks(answers)) == CLOCKS_MAX


# --- Draining nodes and pinning topics -------------------------------------------------------------

PINS = "/v1/cluster/pins"
PIN = f"{PINS}/default/t"


class LostAnswers(MemoryRecords):
    """Records that lose the answer of each drain."""

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        if key.startswith(DRAINED_PREFIX):
            raise OutcomeUnknown("The answer was lost.")
        return await super().put_if(key, expected, value)


async def drained(broker: Broker, node: str | int, action: str = "drain") -> Answered:
    return await broker.call("POST", f"/v1/cluster/nodes/{node}/{action}")


async def pinned(broker: Broker, node: object, target: str = PIN) -> Answered:
    return await broker.call("PUT", target, json.dumps({"node": node}).encode())


async def test_a_node_is_drained_and_undrained(few: FewNodes, member: Broker) -> None:
    url = few.nodes[1].url
    told = {"node": 1, "url": url, "drained": True}
    assert (await drained(member, 1)).json == {**told, "changed": True}
    assert (await drained(member, quote(url, safe=""))).json == {**told, "changed": False}
    assert (await read_placement(few.records)).drained == {1}
    assert few.hints == ["placement", "placement"]
    undrained = (await drained(member, quote(f"{url}/", safe=""), "undrain")).json
    assert undrained == {"node": 1, "url": url, "drained": False, "changed": True}
    assert (await drained(member, 1, "undrain")).json["changed"] is False
    assert (await read_placement(few.records)).drained == set()


async def test_a_dead_node_can_be_undrained(few: FewNodes, member: Broker) -> None:
    await drain(few.records, 9)
    told = (await drained(member, 9, "undrain")).json
    assert told == {"node": 9, "url": None, "drained": False, "changed": True}
    assert (await drained(member, 9, "undrain")).status == 404


@pytest.mark.parametrize(
    "node", ["7", "0001", "99999999999999999999", "http%3A%2F%2Felsewhere", "x"]
)
@pytest.mark.parametrize("action", ["drain", "undrain"])
async def test_an_unknown_node_is_refused_with_the_live_ones(
    few: FewNodes, member: Broker, node: str, action: str
) -> None:
    reply = await drained(member, node, action)
    assert (reply.status, reply.headers["Broker-Error"]) == (404, "not_found")
    for info in few.nodes.values():
        assert f"{info.instance} at {info.url}" in reply.body.decode()
    assert few.hints == []


async def test_the_last_node_that_leads_is_not_drained(few: FewNodes, member: Broker) -> None:
    few.stop(2)
    assert (await drained(member, 1)).status == 200
    refused = await drained(member, 0)
    assert (refused.status, refused.headers["Broker-Error"]) == (400, "bad_request")
    assert b"the last node that leads" in refused.body
    assert (await drained(member, 1, "undrain")).status == 200
    assert (await drained(member, 0)).status == 200


async def test_a_topic_is_pinned_moved_and_unpinned(few: FewNodes, member: Broker) -> None:
    told = {"topic": "default/t", "node": 1, "url": few.nodes[1].url}
    assert (await pinned(member, 1)).json == {**told, "changed": True}
    assert (await pinned(member, few.nodes[1].url)).json == {**told, "changed": False}
    assert (await pinned(member, "2")).json["node"] == 2
    assert (await read_placement(few.records)).pins == {T: 2}
    assert (await member.call("GET", PINS)).json == {
        "pins": [{"topic": "default/t", "node": 2, "lives": True}]
    }
    assert few.hints == ["placement"] * 3
    gone = {"topic": "default/t", "node": None, "url": None}
    assert (await member.call("DELETE", PIN)).json == {**gone, "changed": True}
    assert (await member.call("DELETE", PIN)).json == {**gone, "changed": False}
    assert (await member.call("GET", PINS)).json == {"pins": []}


async def test_only_a_node_that_leads_gets_a_pin(few: FewNodes, member: Broker) -> None:
    await drain(few.records, 1)
    few.stop(2)
    for node, why in ((1, b"is drained"), (2, b"is stopping")):
        refused = await pinned(member, node)
        assert (refused.status, refused.headers["Broker-Error"]) == (400, "bad_request")
        assert why in refused.body
    assert (await pinned(member, 7)).headers["Broker-Error"] == "not_found"
    assert (await read_placement(few.records)).pins == {}


async def test_only_a_topic_that_exists_gets_a_pin(few: FewNodes, member: Broker) -> None:
    for method in ("PUT", "DELETE"):
        reply = await member.call(method, f"{PINS}/default/none", b'{"node": 1}')
        assert (reply.status, reply.headers["Broker-Error"]) == (404, "topic_not_found")
    await pin(few.records, T, 1)
    assert (await member.call("DELETE", topic_path("t"))).status == 200
    assert (await pinned(member, 2)).headers["Broker-Error"] == "topic_not_found"
    assert (await member.call("DELETE", PIN)).json["changed"] is True


async def test_a_topic_that_another_node_deleted_gets_no_pin(few: FewNodes, member: Broker) -> None:
    other = joined(few)
    assert (await member.call("GET", topic_path("t"))).status == 200
    assert (await other.call("DELETE", topic_path("t"))).status == 200
    assert (await pinned(member, 1)).headers["Broker-Error"] == "topic_not_found"
    await other.close()


async def test_a_pin_on_a_dead_node_is_shown(few: FewNodes, member: Broker) -> None:
    await pin(few.records, T, 9)
    assert (await member.call("GET", PINS)).json["pins"][0]["lives"] is False


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"{}", b'{"node": null}', b'{"node": true}', b'{"node": 1.5}']
)
async def test_a_body_that_names_no_node_is_refused(
    few: FewNodes, member: Broker, body: bytes
) -> None:
    reply = await member.call("PUT", PIN, body)
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    assert few.hints == []


async def test_all_nodes_hear_of_a_change_of_unknown_outcome() -> None:
    few = FewNodes(LostAnswers(), SystemClock())
    member = joined(few)
    reply = await drained(member, 1)
    assert (reply.status, reply.headers["Broker-Outcome"]) == (500, "unknown")
    assert few.hints == ["placement"]
    await member.close()

import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from typing_extensions import override

from broker.clock import SystemClock
from broker.coordination.placement import DRAINED_PREFIX, drain, pin, read_placement
from broker.errors import OutcomeUnknown
from broker.model import TopicId
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.testing.memory import MemoryRecords
from tests.kit.members import FewNodes
from tests.kit.openapi import Answered
from tests.kit.serving import Broker, topic_path

T = TopicId("default", "t")
PINS = "/v1/cluster/pins"
PIN = f"{PINS}/default/t"


class LostAnswers(MemoryRecords):
    """Records that lose the answer of each drain."""

    @override
    async def put_if(self, key: bytes, expected: bytes | None, value: bytes) -> bytes | None:
        if key.startswith(DRAINED_PREFIX):
            raise OutcomeUnknown("The answer was lost.")
        return await super().put_if(key, expected, value)


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

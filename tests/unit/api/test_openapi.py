"""A node's answers about itself and about its interface."""

import asyncio
import base64
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from multidict import CIMultiDict

from broker.api.openapi import make_document
from broker.config.sections import Config, LimitsConfig
from broker.http.reply import ChunkedReply
from broker.operations.scalars import TTL_MAX_S, decimals_up_to
from tests.kit.openapi import Answered, Checker, Undocumented
from tests.kit.serving import Broker, topic_path


async def test_every_route_is_documented_and_every_operation_is_served(broker: Broker) -> None:
    document = (await broker.call("GET", "/openapi.json")).json
    documented = {
        (method.upper(), template)
        for template, methods in document["paths"].items()
        for method in methods
    }
    served = {
        (route.operation.method, route.operation.template)
        for route in broker.dispatch.router.routes
    }
    assert documented == served


async def test_the_bounds_of_parameters_are_those_of_the_node() -> None:
    limits = LimitsConfig(browse_messages_max=700, wait_max_s=7)
    broker = Broker(Config(limits=limits))
    topics = "/v1/namespaces/{namespace}/topics/{topic}"
    paths = (await broker.call("GET", "/openapi.json")).json["paths"]
    bounds = {
        each["name"]: each["schema"].get("maximum")
        for operation in (paths[f"{topics}/messages"]["get"], paths[f"{topics}/poll"]["post"])
        for each in operation["parameters"]
        if each["in"] == "query"
    }
    assert (bounds["limit"], bounds["wait"]) == (700, 7)


def test_every_reference_has_a_target() -> None:
    document = make_document()
    references = {part.split('"')[0] for part in json.dumps(document).split('"$ref": "')[1:]}
    assert references
    for reference in references:
        value = document
        for name in reference.removeprefix("#/").split("/"):
            value = value[name]


async def test_events_are_as_documented(broker: Broker) -> None:
    publish = topic_path("t", "publish")
    await broker.call("POST", publish, b"plain", {"Content-Type": "text/plain"})
    message = {
        "value": "a",
        "key": {"base64": base64.b64encode(b"\xff").decode()},
        "headers": {"h": "é"},
    }
    sent = json.dumps({"messages": [message]}).encode()
    await broker.call("POST", publish, sent, {"Content-Type": "application/json"})
    events = await broker.answer("GET", topic_path("t", "events"))
    assert isinstance(events, ChunkedReply)
    found = b""
    async with asyncio.timeout(30):
        while found.count(b"data: ") < 2:
            found += await anext(events.chunks)
    await events.chunks.aclose()
    validator = Draft202012Validator(make_document()["components"]["schemas"]["Event"])
    for line in found.decode().splitlines():
        if line.startswith("data: "):
            validator.validate(json.loads(line.removeprefix("data: ")))


@pytest.mark.slow
@given(st.one_of(st.integers(0, 1 << 33), st.integers(TTL_MAX_S - 300, TTL_MAX_S + 300)))
@example(TTL_MAX_S)
def test_a_ttl_in_words_is_allowed_up_to_the_longest(ttl_s: int) -> None:
    validator = Draft202012Validator(make_document()["components"]["schemas"]["PropertiesSent"])
    assert validator.is_valid({"ttl": str(ttl_s)}) is (1 <= ttl_s <= TTL_MAX_S)
    assert not validator.is_valid({"ttl": f"0{ttl_s}"})


@pytest.mark.parametrize("most", [10, 99, 109, 2147])
def test_a_pattern_of_decimals_accepts_exactly_its_range(most: int) -> None:
    pattern = re.compile(decimals_up_to(most))
    taken = [number for number in range(10 * most) if pattern.search(str(number))]
    assert taken == list(range(1, most + 1))


GOOD = CIMultiDict({"X-Request-Id": "1", "Content-Type": "application/json"})
SHOWN = b'{"ttl": "1", "generation": "1"}'


@pytest.mark.parametrize(
    ("method", "target", "reply"),
    [
        ("GET", topic_path("t"), Answered(200, GOOD, b'{"ttl": 1, "generation": "1"}')),
        ("GET", topic_path("t"), Answered(200, GOOD, b'{"ttl": "1"}')),
        ("GET", topic_path("t"), Answered(418, GOOD, b"{}")),
        (
            "GET",
            topic_path("t"),
            Answered(200, CIMultiDict({"X-Request-Id": "1", "Content-Type": "text/html"}), SHOWN),
        ),
        (
            "GET",
            topic_path("t"),
            Answered(200, CIMultiDict({"Content-Type": "application/json"}), SHOWN),
        ),
        ("GET", topic_path("t"), Answered(200, CIMultiDict({"X-Request-Id": "1"}), SHOWN)),
        ("GET", topic_path("t"), Answered(404, GOOD, b'{"code": "x"}')),
        ("GET", "/unknown", Answered(200, GOOD, b"{}")),
    ],
)
def test_the_checker_refuses_undocumented_replies(
    method: str, target: str, reply: Answered
) -> None:
    with pytest.raises(Undocumented):
        Checker().check(method, target, reply)


def test_the_checker_accepts_documented_replies() -> None:
    checker = Checker()
    checker.check("GET", topic_path("t"), Answered(200, GOOD, SHOWN))
    assert checker.checked == 1


async def test_ping_and_status_answer_as_the_original(broker: Broker) -> None:
    ping = await broker.call("GET", "/ping")
    assert (ping.status, ping.body) == (200, b"OK.\n")
    status = await broker.call("GET", "/v3/system/services/messaging.service/status")
    assert (status.status, status.body) == (200, b'{"status":"OK"}')


async def test_readiness_says_why_not(broker: Broker) -> None:
    assert (await broker.call("GET", "/readyz")).json == {"status": "ready"}
    broker.not_ready = "it is stopping"
    reply = await broker.call("GET", "/readyz")
    assert reply.status == 503
    assert b"it is stopping" in reply.body


async def test_metrics_count_answers_by_route_and_code(broker: Broker) -> None:
    await broker.call("GET", "/v1/namespaces/default/topics/no")
    text = (await broker.call("GET", "/metrics")).body.decode()
    assert 'broker_requests_total{code="topic_not_found",kind="show_topic",node="test"} 1.0' in text
    assert 'kind="create_topic"' in text


async def test_the_root_names_the_product_and_its_interface(broker: Broker) -> None:
    told = (await broker.call("GET", "/")).json
    assert (told["product"], told["version"]) == ("tms-broker", "test")
    assert (await broker.call("GET", told["interface"])).json["openapi"] == "3.1.0"

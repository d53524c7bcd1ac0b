"""From the head of a request to its answer; and a node's answers about itself and about its interface."""

import asyncio
import base64
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from multidict import CIMultiDict
from structlog.testing import capture_logs

from broker import __version__
from broker.access.gate import OpenGate
from broker.api.openapi import make_document
from broker.api.router import Route, Router
from broker.config.sections import Config, LimitsConfig
from broker.errors import (
    BadName,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    OutcomeUnknown,
    StorageCorrupt,
)
from broker.http.budget import Cut
from broker.http.reply import EMPTY, Answer, ChunkedReply, Reply
from broker.http.request import PathNames, Request
from broker.model import TopicId
from broker.operations.operation import Action, Answerer, DeclaredOperation, RepeatEffect
from broker.operations.scalars import TTL_MAX_S, decimals_up_to
from broker.operations.table import OPERATIONS
from broker.principal import Principal
from tests.kit.openapi import Answered, Checker, Undocumented
from tests.kit.serving import Broker, Http, topic_path

TEXT = {"Content-Type": "text/plain"}


async def test_every_handler_is_authorized_first() -> None:
    asked: list[Action] = []

    class Closed(OpenGate):
        is_open = False

        def authorize(self, principal: Principal, action: Action, names: PathNames) -> None:
            asked.append(action)
            raise Forbidden("not you")

    broker = Broker(gate=Closed())
    for route in broker.dispatch.router.routes:
        target = route.operation.template.format(
            **dict.fromkeys(("namespace", "topic", "service", "cursor", "who", "token"), "a"),
            **dict.fromkeys(("node", "stage", "transaction"), "7"),
        )
        reply = await broker.call(route.operation.method, target)
        assert (reply.status, reply.headers["Broker-Error"]) == (403, "forbidden"), route
        assert asked[-1] is route.operation.action
    assert set(asked) == set(Action) - {Action.CURSORS_ALL}
    await broker.close()


async def test_an_unexpected_error_is_unknown_and_logged_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(broker.topics, "get", fail)
    with capture_logs() as lines:
        reply = await broker.call("GET", topic_path("t"), headers={"Accept": "application/json"})
    assert (reply.status, reply.json["code"], reply.json["outcome"]) == (500, "internal", "unknown")
    assert b"surprise" not in reply.body
    assert [line["event"] for line in lines] == ["unexpected error"]


async def test_a_connection_that_was_cut_to_make_room_is_no_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Cut("The connection was cut.")

    monkeypatch.setattr(broker.topics, "get", fail)
    with capture_logs() as lines:
        reply = await broker.call("GET", topic_path("t"))
    assert (reply.status, reply.headers["Broker-Outcome"]) == (503, "refused")
    assert [line["log_level"] for line in lines] in ([], ["debug"])


async def test_corrupt_storage_is_reported_and_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StorageCorrupt("row 7 makes no sense")

    monkeypatch.setattr(broker.topics, "get", fail)
    with capture_logs() as lines:
        reply = await broker.call("GET", topic_path("t"))
    assert (reply.status, reply.headers["Broker-Error"]) == (500, "storage_corrupt")
    assert [line["event"] for line in lines] == ["storage corrupt"]


@pytest.fixture
def every_level() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("every_level")
async def test_a_refusal_is_logged_with_the_requests_id(broker: Broker, http: Http) -> None:
    with capture_logs() as lines:
        await http("GET", topic_path("no"), headers={"X-Request-Id": "mine-1"})
        await http("GET", "/no/such/path", headers={"X-Request-Id": "mine-2"})
        await http("GET", topic_path("t"), headers={"X-Request-Id": "mine-3"})
    told = [(line["event"], line["log_level"], line["request_id"], line["code"]) for line in lines]
    assert told == [
        ("request refused", "debug", "mine-1", "topic_not_found"),
        ("request refused", "debug", "mine-2", "not_found"),
    ]


async def test_an_unknown_outcome_is_a_warning(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OutcomeUnknown("the disk went away")

    monkeypatch.setattr(broker.topics, "publish", fail)
    with capture_logs() as lines:
        publish = topic_path("t", "publish")
        reply = await http("POST", publish, b"x", {"Content-Type": "text/plain"})
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("outcome unknown", "warning")
    assert line["request_id"] == reply.headers["X-Request-Id"]


async def test_clients_can_not_fill_the_log_with_unknown_outcomes(
    broker: Broker, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OutcomeUnknown("the deadline passed")

    monkeypatch.setattr(broker.topics, "publish", fail)
    with capture_logs() as lines:
        for _ in range(100):
            reply = await http("POST", topic_path("t", "publish"), b"x", TEXT)
            assert reply.headers["Broker-Outcome"] == "unknown"
    told = [line for line in lines if line["log_level"] == "warning"]
    assert 1 <= len(told) < 100


async def test_a_refusal_before_the_handler_ends_the_connection(broker: Broker) -> None:
    answer = await broker.answer("PATCH", topic_path("t"))
    assert isinstance(answer, Reply)
    assert answer.close
    assert dict(answer.headers)["Allow"] == "DELETE, GET, HEAD, PUT"
    missing = await broker.call("GET", "/no/such/path")
    assert missing.body == b"Problem accessing: /no/such/path. Reason: Not Found"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
async def test_every_route_refuses_parameters_that_it_does_not_take(
    http: Http, operation: DeclaredOperation
) -> None:
    path = re.sub(r"\{\w+\}", "t", operation.template)
    reply = await http(operation.method, f"{path}?nonsense=1")
    assert (reply.status, reply.headers["Broker-Error"]) == (400, "bad_request")
    taken = ", ".join(operation.query) or "none"
    told = f"nonsense: there is no such parameter. {operation.method} {operation.template} takes {taken}."
    assert reply.body.decode() == told


@pytest.mark.parametrize(
    ("method", "action", "query", "near"),
    [
        ("POST", "publish", "tll=1", "ttl"),
        ("POST", "store", "ttl=1&tl=5", "ttl"),
        ("GET", "messages", "form=0", "from"),
        ("GET", "range", "trough=0", "through"),
    ],
)
async def test_the_nearest_parameter_is_named(
    broker: Broker, method: str, action: str, query: str, near: str
) -> None:
    reply = await broker.call(method, f"{topic_path('t', action)}?{query}", b"x")
    assert reply.status == 400
    assert f"; did you mean {near}? {method} " in reply.body.decode()


async def test_a_very_long_parameter_is_not_repeated_whole(broker: Broker) -> None:
    reply = await broker.call("GET", f"/ping?{'x' * 5000}")
    assert (reply.status, len(reply.body) < 200) == (400, True)


TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"


async def handler(_: Request) -> Answer:
    return EMPTY


def route(name: str, method: str, template: str) -> Route:
    return Route(
        DeclaredOperation(
            name, method, template, Action.SETTINGS, "", RepeatEffect.READING, Answerer.ANY
        ),
        handler,
    )


@pytest.fixture
def router() -> Router:
    return Router(
        [
            route("show", "GET", TOPIC),
            route("create", "PUT", TOPIC),
            route("list", "GET", "/v1/namespaces/{namespace}/topics"),
            route("publish", "POST", f"{TOPIC}/publish"),
            route("status", "GET", "/v3/system/services/{service}/status"),
            route("ping", "GET", "/ping"),
        ]
    )


def test_finds_the_route_and_the_names(router: Router) -> None:
    found = router.find("POST", "/v1/namespaces/ns1/topics/a-b/publish")
    assert found.route.operation.name == "publish"
    assert found.names.topic == TopicId("ns1", "a-b")
    assert router.find("GET", "/v1/namespaces/ns1/topics").names.namespace == "ns1"
    assert (
        router.find("GET", "/v3/system/services/any.thing/status").route.operation.name == "status"
    )


def test_a_known_path_is_found_without_searching(router: Router) -> None:
    assert router.find("GET", "/ping") is router.find("GET", "/ping")


def test_names_are_percent_decoded_after_the_path_is_cut(router: Router) -> None:
    assert router.find("GET", "/v1/namespaces/n%31/topics/%74").names.topic == TopicId("n1", "t")
    with pytest.raises(BadName):
        router.find("GET", "/v1/namespaces/n/topics/a%2Fpublish")


@pytest.mark.parametrize("path", ["/v1/namespaces/n-n/topics/t", "/v1/namespaces/n/topics/t.t"])
def test_names_with_other_characters_are_refused(router: Router, path: str) -> None:
    with pytest.raises(BadName):
        router.find("GET", path)


def test_a_name_that_is_no_utf8_is_refused(router: Router) -> None:
    with pytest.raises(BadName):
        router.find("GET", "/v1/namespaces/n/topics/%ff")


@pytest.mark.parametrize(
    "path", ["/", "", "/xx", "/v1", "/ping/x", "/v1/namespaces//topics", "//ping", "*", "/a" * 5000]
)
def test_other_paths_are_not_found(router: Router, path: str) -> None:
    with pytest.raises(NotFound):
        router.find("GET", path)


def test_other_methods_of_a_known_path_are_not_allowed(router: Router) -> None:
    path = "/v1/namespaces/n/topics/t"
    with pytest.raises(MethodNotAllowed):
        router.find("POST", path)
    assert router.methods(path) == ["GET", "HEAD", "PUT"]


@pytest.mark.parametrize("path", ["/ping/", "/ping//"])
def test_slashes_at_the_end_are_ignored(router: Router, path: str) -> None:
    assert router.find("GET", path).route.operation.name == "ping"


def test_several_slashes_in_a_row_are_one(router: Router) -> None:
    path = "/v1//namespaces/n///topics/t"
    assert router.find("GET", path).names.topic == TopicId("n", "t")


def test_many_invented_paths_do_not_break_the_router(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.api.router.PATHS_KEPT_MAX", 100)
    for number in range(150):
        router.find("GET", f"/v1/namespaces/n/topics/t{number}")
    name = "t" * 10_000
    assert router.find("GET", f"/v1/namespaces/n/topics/{name}").names.topic == TopicId("n", name)
    assert router.find("GET", "/ping").route.operation.name == "ping"


def test_two_routes_with_one_path_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        Router([route("a", "GET", "/x"), route("b", "GET", "/x")])


# --- A node about itself ---------------------------------------------------------------------------


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
    assert (told["product"], told["version"]) == ("tms-broker", __version__)
    assert (await broker.call("GET", told["interface"])).json["openapi"] == "3.1.0"

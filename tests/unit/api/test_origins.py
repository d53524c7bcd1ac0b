"""Which browser pages may use a node: as a rule on values, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from multidict import CIMultiDict

from broker.api import origins as module
from broker.api.openapi import make_document
from broker.api.origins import HEADERS_TAKEN, Origins, canonical, names_of
from broker.config.sections import AccessConfig, AccessMode, ClusterConfig, Config, ServerConfig
from broker.errors import Forbidden
from broker.places import GENERATION_HEADER
from tests.kit.serving import Broker, Http, RawHttp, listening, topic_path

APP = "https://app.example"
EVIL = "http://evil.example"
PUBLISH = topic_path("t", "publish")
EVENTS = topic_path("t", "events")


OPEN = AccessConfig(access_mode=AccessMode.OPEN)


def refused(origins: Origins, **headers: str) -> bool:
    try:
        origins.check(CIMultiDict(headers))
        origins.check_host(CIMultiDict(headers))
    except Forbidden:
        return True
    return False


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "LocalHost.:9000",
        "127.0.0.1:8080",
        "127.0.0.1",
        "10.2.3.4:80",
        "[::1]:8080",
        "[::1]",
        "broker.example:8080",
    ],
)
def test_a_node_is_known_by_its_names_and_by_any_address(host: str) -> None:
    assert not refused(Origins(["localhost", "Broker.example"], []), Host=host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8080",
        "evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1:8080:8080",
        "[::1].evil.example",
        "[evil.example]",
        "",
        " ",
    ],
)
def test_another_name_is_refused_and_the_key_is_named(host: str) -> None:
    with pytest.raises(Forbidden, match=r"server\.host_names") as raised:
        Origins(["localhost"], []).check_host(CIMultiDict(Host=host))
    assert repr(host) in raised.value.message


def test_programs_without_these_headers_pass() -> None:
    assert not refused(Origins([], []))


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        *((host, True) for host in ("127.0.0.1", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.2.3.4", "node-1.example")),
    ],
)
def test_only_a_node_on_loopback_checks_the_name(host: str, is_refused: bool) -> None:
    config = replace(Config(), server=ServerConfig(host=host), access=OPEN)
    origins = Origins.of(config, "box")
    assert refused(origins, Host="broker.namespace.svc:8080") == is_refused


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "Cross-Site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": EVIL}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": APP}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
    ],
)
def test_a_request_across_sites_is_one_of_a_foreign_page(
    headers: dict[str, str], is_refused: bool
) -> None:
    assert refused(Origins(["localhost"], [APP]), Host="localhost", **headers) == is_refused


def test_many_accepted_hosts_do_not_let_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOSTS_KEPT_MAX", 3)
    origins = Origins([], [])
    for number in range(10):
        assert not refused(origins, Host=f"127.0.0.1:{number}")
    assert refused(origins, Host="evil.example")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8080", "localhost:8080"),
        ("http://localhost", "localhost:80"),
        ("http://localhost:80", "localhost"),
        ("https://localhost", "localhost:443"),
        ("HTTP://LOCALHOST:8080", "localhost:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        (APP, "localhost:8080"),
        ("https://app.example:443", "localhost:8080"),
        ("app://broker", "localhost:8080"),
    ],
)
def test_pages_of_the_node_itself_and_of_configured_origins_pass(origin: str, host: str) -> None:
    assert not refused(Origins(["localhost"], [APP, "app://broker"]), Origin=origin, Host=host)


@pytest.mark.parametrize(
    "origin",
    [
        EVIL,
        "null",
        "",
        "http://localhost",
        "http://localhost:8081",
        "http://127.0.0.1:8080",
        "http://app.example",
        "https://app.example:444",
        "https://app.example.evil.example",
        "https://xapp.example",
        "localhost:8080",
        "http://",
    ],
)
def test_pages_of_others_are_refused_and_the_key_is_named(origin: str) -> None:
    with pytest.raises(Forbidden, match=r"server\.cors_origins") as raised:
        Origins(["localhost"], [APP]).check(CIMultiDict(Origin=origin, Host="localhost:8080"))
    assert repr(origin) in raised.value.message


def test_a_page_without_a_host_is_refused() -> None:
    assert refused(Origins(["localhost"], []), Origin="http://localhost")


def test_origins_are_compared_as_browsers_write_them() -> None:
    assert canonical("HTTPS://App.Example:443") == APP
    assert canonical("http://app.example:443") == "http://app.example:443"
    assert canonical("null") == "null"


def test_a_node_s_own_names() -> None:
    assert names_of(Config(), "") == {"localhost", "127.0.0.1"}
    server = ServerConfig(host="0.0.0.0", host_names=("lb.example",))
    cluster = ClusterConfig(advertised_url="http://node-1:8081")
    config = replace(Config(), server=server, cluster=cluster, access=OPEN)
    names = names_of(config, "box.example")
    assert names == {"localhost", "lb.example", "node-1", "box.example", "box"}


# --- Over HTTP ------------------------------------------------------------------------------------


async def status(http: Http, method: str, target: str, **headers: str) -> int:
    """Return the status of an answer; the OpenAPI document need not list it."""
    async with http.session.request(method, http.url + target, headers=headers) as reply:
        return reply.status


async def test_a_page_of_another_site_can_t_publish(http: Http) -> None:
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Host": "evil.example:8080"}):
        reply = await http("POST", PUBLISH, b"a", {"Content-Type": "text/plain", **headers})
        assert (reply.status, reply.headers["Broker-Error"]) == (403, "forbidden")
        assert reply.headers["Broker-Outcome"] == "refused"
        assert not any(name.startswith("Access-Control") for name in reply.headers)
    assert (await http("GET", topic_path("t", "stats"))).json["published"] == 0


@pytest.mark.parametrize("target", ["/ping", "/metrics", "/nothing", EVENTS])
async def test_a_page_of_another_site_gets_nothing(http: Http, target: str) -> None:
    assert await status(http, "GET", target, Origin=EVIL) == 403


@pytest.mark.parametrize("target", ["/ping", "/metrics", EVENTS])
async def test_a_page_of_another_site_can_t_get_without_an_origin(http: Http, target: str) -> None:
    assert await status(http, "GET", target, **{"Sec-Fetch-Site": "cross-site"}) == 403


@pytest.mark.parametrize(
    "target", ["/ping", "/healthz", "/readyz", "/metrics", "/v3/system/services/any/status"]
)
async def test_probes_come_under_any_name(http: Http, target: str) -> None:
    assert await status(http, "GET", target, Host="broker.namespace.svc:8080") == 200
    assert await status(http, "HEAD", target, Host="broker.namespace.svc:8080") == 200
    assert await status(http, "GET", "/openapi.json", Host="broker.namespace.svc:8080") == 403


async def test_a_page_whose_name_was_rebound_to_this_node_gets_nothing(http: Http) -> None:
    """The page's name resolves to this node now (DNS rebinding), so for the browser both have one origin."""
    name = f"evil.example:{http.port}"
    headers = {"Origin": f"http://{name}", "Host": name}
    assert (await http("POST", PUBLISH, b"a", headers)).status == 403


async def test_the_node_s_own_pages_and_programs_are_served(http: Http) -> None:
    text = {"Content-Type": "text/plain"}
    own = {"Origin": http.url}
    assert (await http("POST", PUBLISH, b"a", {**text, **own})).status == 200
    assert (await http("POST", PUBLISH, b"a", text)).status == 200
    async with RawHttp(http.port) as raw:
        await raw.send(b"GET /ping HTTP/1.0\r\n\r\n")
        assert (await raw.reply()).status == 200


async def test_without_configuration_there_is_no_preflight(http: Http) -> None:
    wanted = {"Access-Control-Request-Method": "POST"}
    assert await status(http, "OPTIONS", PUBLISH, Origin=EVIL, **wanted) == 403
    assert await status(http, "OPTIONS", PUBLISH, **wanted) == 405
    assert "Vary" not in (await http("GET", "/ping")).headers


@pytest.fixture
async def configured() -> AsyncIterator[Http]:
    """A broker that pages of ``APP`` may use, with a topic ``t``."""
    broker = Broker(Config(server=ServerConfig(cors_origins=(APP,), host_names=("b.example",))))
    await broker.call("PUT", topic_path("t"))
    async with listening(broker) as http:
        yield http
    await broker.close()


async def test_a_page_of_a_configured_origin_asks_first(configured: Http) -> None:
    async with configured.session.options(
        configured.url + PUBLISH,
        headers={
            "Origin": APP,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type,idempotency-key",
        },
    ) as reply:
        assert (reply.status, await reply.read()) == (200, b"")
        told = reply.headers
    assert told["Access-Control-Allow-Origin"] == APP
    assert told["Access-Control-Allow-Methods"] == "POST"
    assert told["Access-Control-Allow-Headers"] == ", ".join(HEADERS_TAKEN)
    assert told["Access-Control-Max-Age"] == "600"
    assert told["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in told


async def test_a_preflight_of_an_unknown_path_is_404(configured: Http) -> None:
    headers = {"Origin": APP, "Access-Control-Request-Method": "GET"}
    async with configured.session.options(configured.url + "/nothing", headers=headers) as reply:
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (404, APP)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/ping", 200),
        ("POST", PUBLISH, 200),
        ("POST", f"{PUBLISH}?tll=1", 400),
        ("GET", topic_path("no"), 404),
        ("OPTIONS", PUBLISH, 405),
        ("GET", "/openapi.json", 200),
    ],
)
async def test_every_reply_can_be_read_by_a_configured_page(
    configured: Http, method: str, target: str, status: int
) -> None:
    headers = {"Origin": APP, "Content-Type": "text/plain"}
    body = b"a" if method == "POST" else b""
    reply = await configured(method, target, body, headers)
    assert reply.status == status
    assert reply.headers["Access-Control-Allow-Origin"] == APP
    assert reply.headers["Access-Control-Expose-Headers"] == "*"
    assert reply.headers["Vary"] == "Origin"


async def test_streams_can_be_read_by_a_configured_page(configured: Http) -> None:
    async with asyncio.timeout(30):
        async with configured.session.get(
            configured.url + EVENTS, headers={"Origin": APP}
        ) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            assert reply.headers["Access-Control-Allow-Origin"] == APP
    poll = await configured(
        "POST",
        topic_path("t", "poll"),
        b"{}",
        {"Origin": APP, "Content-Type": "application/json"},
    )
    assert (poll.status, poll.headers["Access-Control-Allow-Origin"]) == (200, APP)


async def test_other_origins_are_refused_if_some_are_configured(configured: Http) -> None:
    reply = await configured("POST", PUBLISH, b"a", {"Origin": EVIL})
    assert (reply.status, reply.headers["Vary"]) == (403, "Origin")
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert (await configured("GET", "/ping")).headers["Vary"] == "Origin"


async def test_a_configured_name_is_the_node_s(configured: Http) -> None:
    for host in ("b.example", "B.example:80"):
        assert (await configured("GET", topic_path("t"), headers={"Host": host})).status == 200
    assert (await configured("GET", topic_path("t"), headers={"Host": "c.example"})).status == 403


def test_a_page_may_send_each_header_of_the_interface() -> None:
    paths = make_document()["paths"]
    told = {
        parameter["name"]
        for path in paths.values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
        if parameter.get("in") == "header"
    }
    assert GENERATION_HEADER in told
    assert told <= set(HEADERS_TAKEN)

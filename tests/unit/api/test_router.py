import pytest

from broker.api.router import Route, Router
from broker.errors import BadName, MethodNotAllowed, NotFound
from broker.http.reply import EMPTY, Answer
from broker.http.request import Request
from broker.model import TopicId
from broker.operations.operation import Action, Answerer, DeclaredOperation, RepeatEffect

TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"


async def handler(_: Request) -> Answer:
    return EMPTY


def route(name: str, method: str, template: str) -> Route:
    return Route(
        DeclaredOperation(
            name, method, template, Action.ADMIN, "", RepeatEffect.READING, Answerer.ANY
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

import pytest
from multidict import CIMultiDict
from structlog.testing import capture_logs

from broker.api.access import Action
from broker.api.replies import Reply
from broker.api.request import Names
from broker.errors import Forbidden, StorageCorrupt
from broker.testing.serving import Broker, topic_path


async def test_every_handler_stands_behind_authorize() -> None:
    asked: list[tuple[str | None, Action, Names]] = []

    def refuse(principal: str | None, action: Action, names: Names) -> None:
        asked.append((principal, action, names))
        raise Forbidden("not you")

    broker = Broker(authorize=refuse)
    for route in broker.dispatch.router.routes:
        target = route.template.format(namespace="n", topic="t", service="s")
        reply = await broker.call(route.method, target)
        assert (reply.status, reply.headers["Broker-Error"]) == (403, "forbidden"), route
        assert asked[-1][1] is route.action
    assert {action for _, action, _ in asked} == set(Action) - {Action.TRANSACTIONS}
    await broker.close()


async def test_the_unexpected_is_unknown_and_logged_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(broker.topics, "get", fail)
    with capture_logs() as lines:
        reply = await broker.call("GET", topic_path("t"), headers={"Accept": "application/json"})
    assert (reply.status, reply.json["code"], reply.json["outcome"]) == (500, "internal", "unknown")
    assert b"surprise" not in reply.body
    assert [line["event"] for line in lines] == ["unexpected error"]


async def test_corrupt_storage_is_told_and_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise StorageCorrupt("row 7 makes no sense")

    monkeypatch.setattr(broker.topics, "get", fail)
    with capture_logs() as lines:
        reply = await broker.call("GET", topic_path("t"))
    assert (reply.status, reply.headers["Broker-Error"]) == (500, "storage_corrupt")
    assert [line["event"] for line in lines] == ["storage corrupt"]


async def test_a_refusal_before_the_handler_ends_the_connection(broker: Broker) -> None:
    answer = await broker.dispatch.call("PATCH", topic_path("t"), CIMultiDict())
    assert isinstance(answer, Reply)
    assert answer.close
    assert dict(answer.headers)["Allow"] == "DELETE, GET, PUT"
    missing = await broker.call("GET", "/no/such/path")
    assert missing.body == b"Problem accessing: /no/such/path. Reason: Not Found"

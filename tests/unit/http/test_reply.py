import json

import pytest

from broker.errors import (
    BodyTooLarge,
    BrokerError,
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    TopicNotFound,
    registry,
)
from broker.http.reply import Reply, error_reply, names_json, unexpected_reply
from broker.operations.media_types import JSON


def header(reply: Reply, name: str) -> str | None:
    return dict(reply.headers).get(name)


def test_errors_are_text_unless_json_is_named() -> None:
    error = TopicNotFound("Topic 'a:b' was not found.")
    reply = error_reply(error, {})
    assert (reply.status, reply.body) == (404, b"Topic 'a:b' was not found.")
    assert reply.content_type == "text/plain; charset=utf-8"
    assert header(reply, "Broker-Error") == "topic_not_found"
    assert header(reply, "Broker-Outcome") == "refused"
    for headers in ({"Accept": "text/html, application/json;q=0.1"}, {"Content-Type": JSON}):
        reply = error_reply(error, headers)
        assert json.loads(reply.body) == {
            "code": "topic_not_found",
            "message": "Topic 'a:b' was not found.",
            "retriable": False,
            "outcome": "refused",
        }


def test_json_is_named_by_exact_type() -> None:
    assert names_json({"Content-Type": "application/json; charset=utf-8"})
    assert names_json({"Content-Type": "avro/json"})
    assert names_json({"Accept": "avro/json"})
    assert not names_json({"Content-Type": "text/plain", "Accept": "*/*"})


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Overloaded("x", retry_after_s=2.1), "3"),
        (NoLeader("x"), "1"),
        (Overloaded("x", retry_after_s=0), "1"),
        (StorageFull("x"), "1"),
        (StorageFull("x", outcome="unknown"), None),
        (BodyTooLarge("x"), None),
        (OutcomeUnknown("x"), None),
    ],
)
def test_a_retriable_refusal_says_when_to_retry(error: BrokerError, seconds: str | None) -> None:
    assert header(error_reply(error, {}), "Retry-After") == seconds


def test_every_error_of_the_registry_becomes_its_reply() -> None:
    # A client's own errors never come from a node; other tests of the same process may have loaded them.
    clients_own = ("broker.client", "broker.sql", "broker.rowlog")
    for kind in (kind for kind in registry() if not kind.__module__.startswith(clients_own)):
        error = kind("text ☃ \ud800")
        reply = error_reply(error, {"Accept": JSON})
        assert reply.status == kind.http_status
        assert json.loads(reply.body)["code"] == kind.code
        assert error_reply(error, {}).body.startswith(b"text")


def test_long_texts_are_cut() -> None:
    assert len(error_reply(TopicNotFound("x" * 1_000_000), {}).body) < 10_000


def test_an_unexpected_error_is_unknown_and_names_the_request() -> None:
    reply = unexpected_reply({"Accept": JSON}, "r-7")
    told = json.loads(reply.body)
    assert (reply.status, told["code"], told["outcome"]) == (500, "internal", "unknown")
    assert "r-7" in told["message"]

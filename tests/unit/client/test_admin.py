import pytest

from broker.client import admin
from broker.client.client_request import ClientRequest
from broker.model import TopicId
from broker.operations.table import BY_NAME
from tests.kit.openapi import Checker

T = TopicId("ns", "t-1")


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (admin.status(), "cluster"),
        (admin.status(with_topics=True), "cluster"),
        (admin.status(topic=T), "cluster"),
        (admin.drain("1"), "drain"),
        (admin.drain("http://a.b:8081/"), "drain"),
        (admin.undrain("1"), "undrain"),
        (admin.pins(), "pins"),
        (admin.pin(T, "1"), "pin"),
        (admin.unpin(T), "unpin"),
    ],
)
def test_the_broker_serves_each_request(request_: ClientRequest, name: str) -> None:
    found = Checker().operation(request_.method, request_.path.partition("?")[0])
    assert found is not None
    assert found["operationId"] == name
    assert name in BY_NAME


def test_every_request_is_repeatable_and_reads_are_marked() -> None:
    changes = [admin.drain("1"), admin.undrain("1"), admin.pin(T, "1"), admin.unpin(T)]
    reads = [admin.status(), admin.pins(), admin.leader(T)]
    assert all(request.repeatable for request in [*changes, *reads])
    assert [request.reading for request in [*changes, *reads]] == [False] * 4 + [True] * 3


def test_a_url_is_one_segment_of_a_path() -> None:
    assert admin.drain("http://h:1").path == "/v1/cluster/nodes/http%3A%2F%2Fh%3A1/drain"


def test_requests_about_one_topic_name_it() -> None:
    assert {admin.leader(T).topic, admin.pin(T, "1").topic, admin.unpin(T).topic} == {T}

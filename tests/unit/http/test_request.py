import pytest

from broker.errors import BadRequest
from broker.http.request import QUERY_FIELDS_MAX, Request


def query(text: str) -> Request:
    return Request("GET", "/x", text, {}, b"")


def test_query_is_parsed_once() -> None:
    request = query("a=1&b=%C3%A4&c=")
    assert dict(request.query) == {"a": "1", "b": "ä", "c": ""}
    assert request.query is request.query


@pytest.mark.parametrize("text", ["a=1&a=2", "a=1&b=&a=1", "a=&%61="])
def test_a_parameter_may_come_once(text: str) -> None:
    with pytest.raises(BadRequest, match="'a' comes twice in the query"):
        _ = query(text).query


def test_no_query_is_empty() -> None:
    assert dict(query("").query) == {}


@pytest.mark.parametrize(
    "text", ["a=%ff", "&".join(f"p{n}=1" for n in range(QUERY_FIELDS_MAX + 1))]
)
def test_a_query_that_cannot_be_read_is_malformed(text: str) -> None:
    with pytest.raises(BadRequest):
        _ = query(text).query


def test_asking_for_the_topic_of_a_path_without_one_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        _ = query("").topic

"""What callers publish, as requests."""

import pytest

from broker.client import NewMessage
from broker.client.messages import request_of
from broker.errors import BadRequest
from broker.model import PublishRequest
from broker.wire import attributes


def test_plain_messages_are_a_request_without_attributes() -> None:
    assert request_of(b"a") == PublishRequest(None, [b"a"])
    assert request_of("café", pointer=7) == PublishRequest(7, ["café".encode()])
    assert request_of([b"a", "b"]) == PublishRequest(None, [b"a", b"b"])
    assert request_of([NewMessage("a"), "b"]) == PublishRequest(None, [b"a", b"b"])


def test_a_message_has_its_own_key_headers_and_life() -> None:
    whole = NewMessage(b"a", key="k", headers={"kind": "tick", "raw": b"\xff"}, ttl_s=60)
    found = request_of([whole, b"b"])
    encoded = attributes.encode(b"k", {"kind": b"tick", "raw": b"\xff"})
    assert found == PublishRequest(None, [b"a", b"b"], attributes=[encoded, b""], ttls_s=[60, None])
    assert request_of(whole).payloads == [b"a"]


def test_those_of_the_call_are_for_messages_without_their_own() -> None:
    found = request_of([NewMessage(b"a", key=b""), "b"], key="k", headers={"h": "1"})
    assert found.attributes == [
        attributes.encode(b"", {"h": b"1"}),
        attributes.encode(b"k", {"h": b"1"}),
    ]
    assert found.ttls_s == ()


def test_too_many_headers_are_refused() -> None:
    with pytest.raises(BadRequest, match="100 headers"):
        request_of(b"a", headers={str(number): b"" for number in range(101)})

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from broker.errors import BadRequest, Forbidden, NoLeader
from broker.principal import NODE, Principal
from broker.routing import nodeheaders
from broker.routing.nodeheaders import (
    PROTOCOL,
    Envelope,
    LaneTicket,
    NodeHeaders,
    Repeat,
    Sender,
    check_body,
)

SECRET = "5" * 64
NUMBER = st.integers(0, 10**18 - 1)
TICKET = st.tuples(NUMBER, NUMBER, NUMBER).map(lambda t: LaneTicket(t[0], max(t[1:]), min(t[1:])))
REPEAT = st.builds(
    Repeat,
    st.none() | st.text("0123456789abcdef", min_size=1, max_size=64),
    st.integers(1, 10**6),
    st.none() | NUMBER,
)
HEADERS = st.builds(
    NodeHeaders,
    st.builds(Sender, st.integers(0, 255), st.from_regex(r"[0-9A-Za-z._-]{1,128}", fullmatch=True)),
    NUMBER,
    REPEAT,
    st.none() | TICKET,
    st.builds(Principal, st.text(max_size=9), st.frozensets(st.text(max_size=9), max_size=3)),
    NUMBER,
)
HERE = Envelope("http://a:1", "POST", "/v1/x?y=1")


@given(HEADERS)
def test_headers_are_decoded_as_they_were_encoded(sent: NodeHeaders) -> None:
    read = nodeheaders.parse(CIMultiDict(sent.format()))
    assert read == sent


@given(HEADERS, st.text(max_size=70))
def test_headers_without_a_signature_are_refused(sent: NodeHeaders, guess: str) -> None:
    headers = HERE.signed(sent.format(), b"", SECRET)
    HERE.check(headers, SECRET)
    for wrong in ({**headers, nodeheaders.SIGNATURE: guess}, sent.format()):
        with pytest.raises(Forbidden):
            HERE.check(wrong, SECRET)
    with pytest.raises(Forbidden):
        HERE.check(headers, "6" * 64)


@pytest.mark.parametrize(
    "other",
    [
        HERE._replace(url="http://evil:1"),
        HERE._replace(method="PUT"),
        HERE._replace(target="/v1/x"),
    ],
)
def test_a_signature_is_of_no_use_elsewhere(other: Envelope) -> None:
    headers = HERE.signed(NodeHeaders(Sender(1, "a"), 5).format(), b"", SECRET)
    with pytest.raises(Forbidden):
        other.check(headers, SECRET)


@pytest.mark.parametrize("name", nodeheaders.SIGNED)
def test_every_header_of_meaning_is_signed(name: str) -> None:
    told = NodeHeaders(Sender(1, "a"), 5, Repeat("ab", 2, 3), LaneTicket(1, 2, 2), NODE, 7)
    headers = HERE.signed(told.format(), b"", SECRET)
    for value in ("", "-", "8"):
        with pytest.raises(Forbidden):
            HERE.check({**headers, name: value}, SECRET)
    if headers.pop(name, None) is not None:
        with pytest.raises(Forbidden):
            HERE.check(headers, SECRET)


def test_another_body_is_refused() -> None:
    for body in (b"", b"a" * 9, b"a" * 70_000):
        headers = HERE.signed(NodeHeaders(Sender(1, "a"), 5).format(), body, SECRET)
        check_body(headers, body)
        with pytest.raises(Forbidden):
            check_body(headers, body + b"b")
    with pytest.raises(Forbidden):
        check_body(HERE.signed({}, b"a", SECRET), b"b")


@given(
    st.sampled_from(nodeheaders.NAMES),
    st.text(st.characters(max_codepoint=255), max_size=30),
)
def test_every_header_is_read_or_refused(name: str, text: str) -> None:
    whole = NodeHeaders(Sender(1, "a"), 5, Repeat("ab", 2, 3), LaneTicket(1, 2, 2)).format()
    with contextlib.suppress(BadRequest, NoLeader):  # Both are definite refusals.
        nodeheaders.parse({**whole, name: text})


@pytest.mark.parametrize("name", nodeheaders.NAMES)
def test_a_request_with_any_of_the_headers_claims_to_come_from_a_node(name: str) -> None:
    assert nodeheaders.are_there(CIMultiDict({name.lower(): ""}))
    assert not nodeheaders.are_there(CIMultiDict({"Content-Type": "text/plain"}))


def test_only_a_new_key_with_a_known_epoch_is_fresh() -> None:
    assert Repeat("ab", 1, 3).is_fresh
    assert not Repeat("ab", 2, 3).is_fresh
    assert not Repeat("ab", 1, None).is_fresh
    assert not Repeat(None, 1, 3).is_fresh


def test_a_node_of_a_later_protocol_serves_this_one() -> None:
    nodeheaders.check_serves(PROTOCOL)
    nodeheaders.check_serves(PROTOCOL + 1)
    with pytest.raises(NoLeader, match="uses protocol 1"):
        nodeheaders.check_serves(PROTOCOL - 1)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.http.answer import HttpAnswer
from broker.routing.forwarder import Elsewhere
from broker.routing.routed_calls import LeaderSeen, Relayed

NUMBER = st.none() | st.integers(0, 1 << 62)


@given(st.from_regex(r"https?://[a-z0-9.:]{1,20}", fullmatch=True), NUMBER, NUMBER)
def test_the_header_of_the_leader_is_parsed_as_it_was_formatted(url, node, epoch) -> None:
    seen = LeaderSeen(url, node, epoch)
    assert LeaderSeen.parse(seen.format()) == seen


@given(st.text(max_size=40))
def test_any_text_is_parsed(text: str) -> None:
    LeaderSeen.parse(text)


def test_a_number_of_too_many_digits_counts_as_unknown() -> None:
    assert LeaderSeen.parse("http://a:1;node=1;epoch=" + "9" * 5000) == LeaderSeen("http://a:1", 1)


@given(st.binary(max_size=60))
def test_any_421_is_parsed(body: bytes) -> None:
    assert Elsewhere.of(HttpAnswer(421, {}, body)) == Elsewhere()


@pytest.mark.parametrize(
    ("body", "leader"),
    [
        (b'{"node":1,"url":"u","epoch":2}', Elsewhere(1, "u", 2)),
        (b'{"node":null,"url":null,"epoch":null}', Elsewhere()),
        (b'{"node":"1","url":3,"epoch":[]}', Elsewhere()),
    ],
)
def test_a_421_names_the_leader(body: bytes, leader: Elsewhere) -> None:
    assert Elsewhere.of(HttpAnswer(421, {}, body)) == leader


def test_an_answer_shows_that_the_poll_has_moved() -> None:
    assert Relayed(HttpAnswer(200, {"broker-moved": "true"}, b"")).has_moved
    assert not Relayed(HttpAnswer(200, {}, b"")).has_moved

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    BadRequest,
    BrokerError,
    Forbidden,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    Unavailable,
    registry,
)
from broker.http.answer import HttpAnswer
from broker.operations.operation import RepeatEffect
from broker.routing.decisions import (
    SUCCESS,
    LeaderSeen,
    Next,
    PeerAnswer,
    Relayed,
    after_answer,
    after_loss,
    at_the_deadline,
    is_final,
)

ERRORS = [kind("why") for kind in registry()]
WRITES = [kind for kind in RepeatEffect if not kind.is_reading]
EITHER = (False, True)


def by(error: BrokerError) -> PeerAnswer:
    return PeerAnswer.by_error(error)


@pytest.mark.parametrize("kind", RepeatEffect)
@pytest.mark.parametrize(("doubt", "own"), list(itertools.product(EITHER, EITHER)))
def test_a_success_is_passed_on_after_any_earlier_attempt(kind, doubt, own):
    assert after_answer(kind, SUCCESS, in_doubt=doubt, own_key=own) is Next.REPLY


@pytest.mark.parametrize("error", [NotLeader(""), NoLeader(""), Unavailable(""), Forbidden("")])
@pytest.mark.parametrize("kind", RepeatEffect)
def test_after_a_refusal_without_a_leader_the_leader_is_looked_up_again(kind, error):
    for doubt in EITHER:
        assert after_answer(kind, by(error), in_doubt=doubt, own_key=False) is Next.AGAIN


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", WRITES)
def test_a_refusal_never_hides_that_an_earlier_attempt_may_have_been_done(kind, error):
    step = after_answer(kind, by(error), in_doubt=True, own_key=False)
    if error.outcome == "refused":
        assert step is not Next.REPLY


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("doubt", EITHER)
def test_an_uncertain_request_is_repeated_only_if_that_is_harmless(error, doubt):
    answer = by(error)
    for own in EITHER:
        assert after_answer(
            RepeatEffect.ONCE, answer, in_doubt=doubt, own_key=own
        ) is not Next.REPEAT or (answer.outcome == "refused")
    assert after_loss(RepeatEffect.ONCE, sent=True) is Next.UNKNOWN


def test_the_table():
    unknown, full = by(OutcomeUnknown("")), by(StorageFull("", outcome="unknown"))
    busy, bad = by(Overloaded("")), by(BadRequest(""))

    def step(kind, answer, *, doubt=False, own=False):
        return after_answer(kind, answer, in_doubt=doubt, own_key=own)

    assert step(RepeatEffect.KEYED, unknown) is Next.REPEAT
    assert step(RepeatEffect.KEYED, unknown, own=True) is Next.REPLY
    assert step(RepeatEffect.IDEMPOTENT, unknown) is Next.REPEAT
    assert step(RepeatEffect.ONCE, unknown) is Next.REPLY
    assert step(RepeatEffect.READING, unknown) is Next.REPLY
    assert step(RepeatEffect.KEYED, full) is Next.REPLY
    assert step(RepeatEffect.KEYED, busy) is Next.REPLY
    assert step(RepeatEffect.KEYED, busy, doubt=True) is Next.REPEAT
    assert step(RepeatEffect.KEYED, bad) is Next.REPLY
    assert step(RepeatEffect.KEYED, bad, doubt=True) is Next.UNKNOWN
    assert step(RepeatEffect.READING, bad, doubt=True) is Next.REPLY


@pytest.mark.parametrize("kind", RepeatEffect)
def test_the_step_after_a_loss(kind):
    assert after_loss(kind, sent=False) is Next.AGAIN
    expected = {
        RepeatEffect.KEYED: Next.REPEAT,
        RepeatEffect.IDEMPOTENT: Next.REPEAT,
        RepeatEffect.ONCE: Next.UNKNOWN,
    }
    assert after_loss(kind, sent=True) is expected.get(kind, Next.AGAIN)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_reply_has_the_code_and_outcome_of_its_error(error):
    answer = PeerAnswer.by_reply(error.http_status, error.code, error.outcome)
    assert (answer.code, answer.outcome) == (error.code, error.outcome)
    if error.outcome == "refused":
        assert answer.retriable == error.retriable


def test_a_reply_without_an_outcome_is_unknown():
    assert PeerAnswer.by_reply(500, "", "").outcome == "unknown"
    assert PeerAnswer.by_reply(204, "", "") is SUCCESS


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("own", EITHER)
def test_a_request_in_doubt_has_an_unknown_outcome_at_the_deadline(kind, own):
    doubt = at_the_deadline(kind, "cut", in_doubt=True, own_key=own)
    assert (doubt.code, doubt.outcome, doubt.retriable) == ("outcome_unknown", "unknown", own)
    assert doubt.http_status == (503 if own else 500)
    clear = at_the_deadline(kind, "cut", in_doubt=False, own_key=own)
    assert (clear.code, clear.outcome) == ("no_leader", "refused")


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("own", EITHER)
def test_the_sender_passes_on_every_answer_that_is_final_for_the_leader(kind, error, attempt, own):
    # Otherwise the next request of a lane could overtake a request that is sent again.
    if is_final(kind, by(error), attempt=attempt, own_key=own):
        for doubt in EITHER[:attempt]:
            assert after_answer(kind, by(error), in_doubt=doubt, own_key=own) is Next.REPLY


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
    assert LeaderSeen.named_in(HttpAnswer(421, {}, body)) == LeaderSeen()


@pytest.mark.parametrize(
    ("body", "leader"),
    [
        (b'{"node":1,"url":"u","epoch":2}', LeaderSeen("u", 1, 2)),
        (b'{"node":null,"url":null,"epoch":null}', LeaderSeen()),
        (b'{"node":"1","url":3,"epoch":[]}', LeaderSeen()),
    ],
)
def test_a_421_names_the_leader(body: bytes, leader: LeaderSeen) -> None:
    assert LeaderSeen.named_in(HttpAnswer(421, {}, body)) == leader


def test_an_answer_shows_that_the_poll_has_moved() -> None:
    assert Relayed(HttpAnswer(200, {"broker-moved": "true"}, b"")).has_moved
    assert not Relayed(HttpAnswer(200, {}, b"")).has_moved

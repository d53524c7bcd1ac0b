import pytest

from broker import errors
from broker.errors import BrokerError, OutcomeUnknown, RequestError, StorageFull, UnavailableError

ERRORS = [error for error in errors.registry() if error.__module__ == "broker.errors"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_error_has_a_docstring_a_message_and_a_status(error: type[BrokerError]) -> None:
    assert error.__doc__
    assert error("text").message == "text"
    assert 400 <= error.http_status < 600


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_each_base_class_decides_outcome_retry_and_status(error: type[BrokerError]) -> None:
    raised = error("text")
    if isinstance(raised, RequestError):
        assert (raised.outcome, raised.retriable) == ("refused", False)
        assert 400 <= raised.http_status < 500 or raised.http_status == 501
    elif isinstance(raised, UnavailableError):
        assert (raised.outcome, raised.retriable) == ("refused", True)
        assert raised.http_status in (421, 429, 503, 507)
    else:
        assert (raised.outcome, raised.retriable) == ("unknown", False)
        assert raised.http_status == 500


def test_an_unclassified_error_has_an_unknown_outcome() -> None:
    assert BrokerError.outcome == "unknown"
    assert not BrokerError.retriable


def test_only_a_definite_refusal_is_503() -> None:
    assert {error.outcome for error in ERRORS if error.http_status == 503} == {"refused"}
    assert OutcomeUnknown.http_status == 500


def test_a_full_disk_may_leave_the_outcome_of_a_request_unknown() -> None:
    assert (StorageFull("x").outcome, StorageFull("x").retriable) == ("refused", True)
    under_way = StorageFull("x", outcome="unknown")
    assert (under_way.outcome, under_way.retriable) == ("unknown", False)


def test_the_set_of_error_codes_is_as_promised() -> None:
    promised = (
        "bad_request bad_name topic_not_found topic_exists not_found payloads_sealed "
        "transaction_too_old idempotency_key_reused body_too_large too_many_messages overloaded "
        "no_leader outcome_unknown clock_skew storage_full storage_corrupt forbidden not_leader "
        "not_allowed not_installed transaction_fenced transaction_not_in_progress transaction_conflict changes_too_large "
        "cursor_moved too_many_cursors topic_recreated already_published quota_exceeded unauthenticated"
    )
    assert {error.code for error in ERRORS} == {*promised.split(), "internal"}


def test_an_error_may_carry_a_retry_time() -> None:
    assert errors.Overloaded("x", retry_after_s=1.5).retry_after_s == 1.5
    assert errors.Overloaded("x").retry_after_s is None

import random
import re

import pytest

from broker import errors
from broker.client import Settings, outcomes, protocol
from broker.client.client_request import Reply
from broker.client.retrier import Retrier
from broker.model import Poll, PublishRequest, TopicId

TOPIC = TopicId("ns1", "t1")
PUBLISH = protocol.publish(TOPIC, PublishRequest(None, [b"a"]))
KEYED = protocol.publish(TOPIC, PublishRequest(None, [b"a"]), key="k")
CREATE = protocol.create_topic(TOPIC, {})
POLL = protocol.poll(TOPIC, Poll())


@pytest.mark.parametrize(
    ("request_", "status", "headers", "expected"),
    [
        (PUBLISH, 404, {"broker-error": "topic_not_found"}, errors.TopicNotFound),
        (PUBLISH, 409, {"broker-error": "payloads_sealed"}, errors.PayloadsSealed),
        (PUBLISH, 413, {"broker-error": "too_many_messages"}, errors.TooManyMessages),
        (PUBLISH, 422, {"broker-error": "idempotency_key_reused"}, errors.IdempotencyKeyReused),
        (PUBLISH, 405, {"broker-error": "not_found"}, errors.MethodNotAllowed),
        (PUBLISH, 503, {"broker-error": "overloaded"}, errors.Overloaded),
        (PUBLISH, 429, {"broker-error": "quota_exceeded"}, errors.QuotaExceeded),
        (KEYED, 503, {"broker-error": "outcome_unknown"}, errors.OutcomeUnknown),
        (PUBLISH, 500, {"broker-error": "storage_corrupt"}, errors.StorageCorrupt),
        (PUBLISH, 404, {}, errors.TopicNotFound),
        (CREATE, 409, {}, errors.TopicExists),
        (PUBLISH, 409, {}, errors.PayloadsSealed),
        (PUBLISH, 400, {}, errors.BadRequest),
        (PUBLISH, 503, {}, errors.Unavailable),
        (PUBLISH, 418, {}, errors.RequestError),
        (PUBLISH, 500, {}, errors.OutcomeUnknown),
        (PUBLISH, 502, {}, errors.OutcomeUnknown),
        (POLL, 500, {}, errors.Unavailable),
        (POLL, 302, {}, errors.Unavailable),
        (POLL, 429, {}, errors.Unavailable),
        (PUBLISH, 429, {}, errors.OutcomeUnknown),
        (PUBLISH, 204, {}, errors.OutcomeUnknown),
    ],
)
def test_an_answer_becomes_an_error(request_, status, headers, expected):
    error = outcomes.error_of(request_, Reply(status, headers, b"no ns1:t1", "http://a:1"))
    assert type(error) is expected
    if "broker-error" in headers:
        assert error.message == "no ns1:t1"
    else:
        assert re.match(f"http://a:1 answered with status {status}\\b.*: no ns1:t1$", error.message)


PAGE = b"<html>404 Not Found</html>"
AWAY, REFUSED = "away", "refused"


@pytest.mark.parametrize(
    ("status", "kind", "body", "effect"),
    [
        (400, "text/html", PAGE, AWAY),
        (401, "text/html", PAGE, REFUSED),
        (403, "text/html", PAGE, AWAY),
        (403, "application/json", b'{"message": "Forbidden"}', AWAY),
        (403, "text/plain", b"user may not read ns1:t1", REFUSED),
        (404, "text/html", PAGE, AWAY),
        (404, "text/plain", b"default backend - 404", AWAY),
        (404, "application/json", b'{"message": "no route for t1"}', AWAY),
        (404, "text/plain", b"Topic ns1:t1 was not found", REFUSED),
        (405, "text/html", PAGE, AWAY),
        (407, "", b"", REFUSED),
        (409, "text/html", PAGE, AWAY),
        (410, "text/html", PAGE, AWAY),
        (413, "text/html", PAGE, REFUSED),
        (418, "", b"", AWAY),
        (429, "text/plain", b"slow down", AWAY),
        (451, "text/html", PAGE, AWAY),
    ],
)
def test_a_refusal_of_another_server_is_the_broker_away(status, kind, body, effect):
    reply = Reply(status, {"content-type": kind, "retry-after": "3"}, body, "http://a:1")
    read, write = outcomes.error_of(POLL, reply), outcomes.error_of(KEYED, reply)
    for request, error in (POLL, read), (KEYED, write):
        assert outcomes.worth_retrying(request, error) is (effect is AWAY)
        assert error.message.startswith(f"http://a:1 answered with status {status}")
        assert error.retry_after_s == 3
    assert write.outcome == ("unknown" if effect is AWAY else "refused")


def test_the_text_of_an_original_server_decides_over_its_status():
    reply = Reply(404, {}, b"Problem accessing: /v1/x. Reason: Not Found")
    assert type(outcomes.error_of(POLL, reply)) is errors.NotFound
    reply = Reply(500, {}, b"Transaction 1 has exceeded max lifetime 90000000 ms")
    assert type(outcomes.error_of(PUBLISH, reply)) is errors.TransactionTooOld


def test_the_message_of_a_json_error_is_read_and_a_broken_one_is_shown_as_it_is():
    headers = {"content-type": "application/json", "broker-error": "bad_request"}
    assert outcomes.error_of(PUBLISH, Reply(400, headers, b'{"message":"m"}')).message == "m"
    assert outcomes.error_of(PUBLISH, Reply(400, headers, b"[1]")).message == "[1]"
    for page in (Reply(404, {}, b" "), Reply(404, {"content-type": "text/html"}, b"<p>no</p>")):
        error = outcomes.error_of(PUBLISH, page)
        assert type(error) is errors.OutcomeUnknown
        assert "another kind of server" in error.message
    assert "418" in outcomes.error_of(PUBLISH, Reply(418, {}, b"")).message


HTML, AVRO, JSON = "text/html", "avro/binary", "application/json"
PURGE = protocol.purge(TOPIC, "now")


@pytest.mark.parametrize(
    ("request_", "kind", "body"),
    [
        (PUBLISH, HTML, b"<html>Please log in</html>"),
        (PUBLISH, JSON, b'{"status": "logged out"}'),
        (CREATE, HTML, b" "),
        (PURGE, AVRO, b"x"),
        (PURGE, HTML, b"{}"),
    ],
)
def test_a_success_of_another_kind_of_server_is_an_unknown_outcome(request_, kind, body):
    for headers in ({"content-type": kind}, {}):
        with pytest.raises(errors.OutcomeUnknown, match="another kind of server"):
            outcomes.checked(request_, Reply(200, headers, body))


@pytest.mark.parametrize(
    ("request_", "kind", "body"),
    [
        (PUBLISH, "", b""),
        (PUBLISH, HTML, b""),
        (PUBLISH, "Avro/Binary", b"range"),
        (PURGE, "application/json; charset=utf-8", b"{}"),
        (POLL, HTML, b"any"),
    ],
)
def test_a_success_of_a_broker_is_passed_on(request_, kind, body):
    reply = Reply(200, {"content-type": kind}, body)
    assert outcomes.checked(request_, reply) is reply


def test_the_outcome_header_decides():
    headers = {"broker-error": "storage_full", "broker-outcome": "unknown"}
    error = outcomes.error_of(PUBLISH, Reply(507, headers, b""))
    assert (error.outcome, error.retriable) == ("unknown", False)
    headers["broker-outcome"] = "refused"
    error = outcomes.error_of(PUBLISH, Reply(507, headers, b""))
    assert (error.outcome, error.retriable) == ("refused", True)


def test_retry_after_is_read():
    error = outcomes.error_of(PUBLISH, Reply(503, {"retry-after": "7"}, b""))
    assert error.retry_after_s == 7
    dates = {
        "retry-after": "Fri, 31 Dec 1999 23:59:59 GMT",
        "date": "Fri, 31 Dec 1999 23:59:29 GMT",
    }
    assert outcomes.error_of(PUBLISH, Reply(429, dates, b"")).retry_after_s == 30
    huge = outcomes.error_of(PUBLISH, Reply(429, {"retry-after": "9" * 5000}, b""))
    assert huge.retry_after_s == outcomes.RETRY_AFTER_S_MAX
    for text in ("Fri, 31 Dec", "inf", "-1", ""):
        error = outcomes.error_of(PUBLISH, Reply(503, {"retry-after": text}, b""))
        assert error.retry_after_s is None


@pytest.mark.parametrize(
    ("request_", "error", "again"),
    [
        (PUBLISH, errors.Overloaded(""), True),
        (PUBLISH, errors.TopicNotFound(""), False),
        (PUBLISH, errors.OutcomeUnknown(""), False),
        (KEYED, errors.OutcomeUnknown(""), True),
        (PUBLISH, errors.StorageFull("", outcome="unknown"), False),
        (KEYED, errors.StorageFull("", outcome="unknown"), True),
        (KEYED, errors.StorageCorrupt(""), False),
        (KEYED, errors.BrokerError(""), False),
        (POLL, outcomes.no_answer(POLL, "lost"), True),
        (PUBLISH, outcomes.no_answer(PUBLISH, "lost"), False),
        (KEYED, outcomes.no_answer(KEYED, "lost"), True),
        (CREATE, outcomes.no_answer(CREATE, "lost"), False),
        (PUBLISH, outcomes.never_sent("down"), True),
    ],
)
def test_only_safe_and_useful_requests_are_retried(request_, error, again):
    assert outcomes.worth_retrying(request_, error) is again


def test_a_lost_answer_of_a_write_is_unknown_even_if_it_may_be_repeated():
    assert outcomes.no_answer(KEYED, "lost").outcome == "unknown"
    assert outcomes.no_answer(POLL, "lost").outcome == "refused"


def test_pauses_double_up_to_a_bound_are_jittered_and_respect_the_broker():
    retrier = Retrier(Settings(retry_delay_min_s=0.1, retry_delay_max_s=5.0), random.Random(1))
    error = errors.Overloaded("")
    for attempt in range(1, 50):
        full = min(5.0, 0.1 * 2 ** (attempt - 1))
        pauses = {retrier.pause_s(error, attempt) for _ in range(20)}
        assert all(full / 2 <= pause <= full for pause in pauses)
        assert len(pauses) > 1
    error.retry_after_s = 9
    assert retrier.pause_s(error, 1) == 9


def test_a_refusal_of_one_message_differs_from_a_refusal_of_all():
    assert outcomes.concerns_one_message(errors.BodyTooLarge(""))
    assert outcomes.concerns_one_message(errors.TooManyMessages(""))
    assert outcomes.concerns_one_message(errors.BadRequest(""))
    assert not outcomes.concerns_one_message(errors.TopicNotFound(""))
    assert not outcomes.concerns_one_message(errors.Overloaded(""))


TWO = (
    "Multiple exceptions: [Errno 111] Connect call failed ('::1', 80, 0, 0), "
    "[Errno 113] Connect call failed ('10.0.0.1', 80)"
)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (OSError(111, "Connect call failed ('::1', 80, 0, 0)"), "connection refused (::1:80)"),
        (
            TWO,
            "connection refused (::1:80), no route to host (10.0.0.1:80)",
        ),
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("no connection in 3 s", "no connection in 3 s"),
    ],
)
def test_a_failed_connection_is_described_in_plain_words(reason, message):
    assert outcomes.never_sent(reason).message == f"{outcomes.UNREACHED}{message}"

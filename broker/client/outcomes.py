"""The meaning of an answer, or of a missing one: an error class, and whether to retry.

This broker names the outcome in headers (``Broker-Error``, ``Broker-Outcome``, ``Retry-After``).
The original broker has only a status and a text; two functions here read these. If neither explains an
answer, the outcome is *unknown*: the client says that a request failed only if that is certain.

The client retries a request only if that is safe and useful: the broker refused it for now, or its outcome
is unknown and the request is repeatable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from broker.client.protocol import AVRO, JSON, ClientRequest, Reply
from broker.errors import (
    AlreadyPublished,
    BadName,
    BadRequest,
    BodyTooLarge,
    BrokerError,
    ChangesTooLarge,
    ClockSkew,
    CursorMoved,
    Forbidden,
    IdempotencyKeyReused,
    MethodNotAllowed,
    NoLeader,
    NotAllowed,
    NotFound,
    NotInstalled,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    RequestError,
    StorageCorrupt,
    StorageFull,
    TooManyCursors,
    TooManyMessages,
    TopicExists,
    TopicNotFound,
    TopicRecreated,
    TransactionConflict,
    TransactionNotInProgress,
    TransactionTooOld,
    Unavailable,
)
from broker.wire.transaction import THRIFT

_BY_CODE: Final[dict[str, type[BrokerError]]] = {
    error.code: error
    for error in (
        BadRequest,
        BadName,
        BodyTooLarge,
        TooManyMessages,
        TopicNotFound,
        TopicRecreated,
        TopicExists,
        NotFound,
        PayloadsSealed,
        AlreadyPublished,
        TransactionTooOld,
        TransactionNotInProgress,
        TransactionConflict,
        ChangesTooLarge,
        CursorMoved,
        TooManyCursors,
        IdempotencyKeyReused,
        Forbidden,
        NotAllowed,
        NotInstalled,
        Overloaded,
        NoLeader,
        NotLeader,
        ClockSkew,
        StorageFull,
        OutcomeUnknown,
        StorageCorrupt,
    )
}

_BY_STATUS: Final[dict[int, type[BrokerError]]] = {
    400: BadRequest,
    401: Forbidden,
    403: Forbidden,
    405: MethodNotAllowed,
    408: Unavailable,  # The unsolicited 408 of a node that stops: it has read nothing.
    413: BodyTooLarge,
    422: TransactionTooOld,
    503: Unavailable,
    507: StorageFull,
}

NO_BROKER: Final = "A server answered with status 404, but without a broker's error message: another kind of server may listen there."
NO_BROKERS_SUCCESS: Final = "A server answered with status 200, but with a body that no broker sends: another kind of server may listen there. It is unknown whether a broker carried out the request."

UNREACHED: Final = "The broker could not be reached: "
"""The error message begins with this text if no broker received the request."""

_CONNECT_FAILED: Final = re.compile(
    r"\[Errno (\d+)\] Connect call failed \('([^']+)', (\d+)[^)]*\)"
)

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")

_CONCERNS_EACH_ALIKE: Final = (
    TopicNotFound,
    TopicRecreated,
    BadName,
    NotFound,
    MethodNotAllowed,
    Forbidden,
)


def is_success(status: int) -> bool:
    """Return whether a status says that the broker did the request."""
    return 200 <= status < 300


def checked(request: ClientRequest, reply: Reply) -> Reply:
    """Return the reply if it is a success; raise the error of any other reply.

    To a write, other servers answer 200, too, for example with a page where a person shall log in. So that is a success
    only with an empty body, or with one of the type that the client expects.
    """
    if not is_success(reply.status):
        raise error_of(request, reply)
    if reply.body and not request.reading and not _is_expected(request, reply):
        raise OutcomeUnknown(NO_BROKERS_SUCCESS)
    return reply


def _is_expected(request: ClientRequest, reply: Reply) -> bool:
    """Return whether a body has the type that a request accepts, by default the original's."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    expected = request.headers.get("Accept", AVRO)
    return kind == expected or (expected == THRIFT and kind == JSON)


def error_of(request: ClientRequest, reply: Reply) -> BrokerError:
    """Return the error that an unsuccessful reply stands for."""
    message = _message(reply) or f"The broker answered with status {reply.status}."
    kind = _BY_CODE.get(reply.headers.get("broker-error", ""))
    if kind is NotFound and reply.status == 405:
        kind = MethodNotAllowed
    if kind is None and reply.status == 404 and _is_foreign(reply):
        kind, message = NotFound, NO_BROKER
    kind = kind or _kind_by_text(message) or _kind_by_status(request, reply.status)
    error = kind(message)
    if isinstance(error, CursorMoved):
        error.cursor = _json(reply).get("cursor")
    outcome = reply.headers.get("broker-outcome")
    if outcome == "unknown":
        error.outcome, error.retriable = "unknown", False
    elif outcome == "refused":
        error.outcome = "refused"
    error.retry_after_s = _seconds(reply.headers.get("retry-after"))
    return error


def _is_foreign(reply: Reply) -> bool:
    """Return whether an answer looks like a web server's. Both kinds of broker name the missing thing in plain text."""
    return not reply.body.strip() or reply.headers.get("content-type", "").startswith("text/html")


def _message(reply: Reply) -> str:
    text = reply.body.decode(errors="replace").strip()
    if reply.headers.get("content-type", "").startswith("application/json"):
        try:
            return str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            return text
    return text


def _json(reply: Reply) -> Mapping[str, Any]:
    """Return an answer's JSON object; an empty one if the answer has none."""
    try:
        parsed = json.loads(reply.body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _seconds(text: str | None) -> float | None:
    # The header may also be a date; then the client uses its own delays.
    return float(text) if text is not None and text.isdecimal() else None


def _kind_by_text(message: str) -> type[BrokerError] | None:
    """Read the texts of the original, where they say more than its status."""
    if message.startswith("Problem accessing: "):  # The 404 is about a path, not a topic.
        return NotFound
    if "has exceeded max lifetime" in message:  # The status is 500, but nothing was done.
        return TransactionTooOld
    return None


def _kind_by_status(request: ClientRequest, status: int) -> type[BrokerError]:
    """Read a status without broker headers, as from the original. An unexplained status is unknown."""
    if status == 404:
        return TopicNotFound if request.topic is not None else NotFound
    if status == 409:
        return TopicExists if request.method == "PUT" else PayloadsSealed
    if 400 <= status < 500 and status not in _BY_STATUS:
        return RequestError
    return _BY_STATUS.get(status, BrokerError if request.reading else OutcomeUnknown)


def never_sent(reason: object) -> BrokerError:
    """Return the error for a request that certainly reached no broker."""
    return Unavailable(f"{UNREACHED}{_plain_reason(reason)}")


def _plain_reason(reason: object) -> str:
    """Return the reason of a failed connection in plain words."""
    text = _CONNECT_FAILED.sub(
        lambda found: f"{os.strerror(int(found[1])).lower()} ({found[2]}:{found[3]})", str(reason)
    )
    return _ERRNO.sub("", text.removeprefix("Multiple exceptions: "))


def no_answer(request: ClientRequest, reason: object) -> BrokerError:
    """Return the error for a request that was sent and never answered in full."""
    if request.reading:
        return Unavailable(f"The connection was lost before the answer was complete: {reason}")
    return OutcomeUnknown(
        f"The connection was lost before the answer, so it is unknown whether the request was "
        f"carried out: {reason}"
    )


def is_by_a_proxy(request: ClientRequest, reply: Reply) -> bool:
    """Return whether an answer to a write reads like a refusal for now, but is not by this project's broker."""
    is_for_now = reply.status in {408, 503, 507}
    return is_for_now and not request.reading and "broker-outcome" not in reply.headers


def by_a_proxy(reply: Reply) -> BrokerError:
    """Return the error for such an answer: the proxy may have passed the request on to the broker."""
    return OutcomeUnknown(
        f"A proxy answered in the broker's place, with status {reply.status}, so it is unknown whether the request "
        f"was carried out: {_message(reply):.200}"
    )


def never_confirmed(error: BrokerError) -> BrokerError:
    """Return the error for a write whose last attempt was refused after an earlier attempt got no answer.

    The refusal concerns only the last attempt. The outcome of the earlier one is unknown.
    """
    return OutcomeUnknown(
        "An earlier attempt got no answer and may have been carried out; the last one was refused: "
        f"{error.message}"
    )


def late(failed: BrokerError | None, *, sent: bool) -> BrokerError:
    """Return the error of a message whose deadline has passed; ``failed`` is that of the last attempt.

    ``sent``: it is in flight, or an earlier attempt got no answer.
    """
    if sent:
        why = f": {failed.message}" if failed is not None else "."
        return OutcomeUnknown(f"No answer came in time, so it is unknown whether it is stored{why}")
    return failed or never_sent("no connection was available in time")


def gave_up() -> BrokerError:
    """Return the error for a write that was in flight when the client was closed."""
    return OutcomeUnknown("The client was closed before an answer came.")


def worth_retrying(request: ClientRequest, error: BrokerError) -> bool:
    """Return whether the same request, sent again, is both safe and useful."""
    if error.outcome == "refused":
        return error.retriable
    return request.repeatable and isinstance(error, OutcomeUnknown | StorageFull)


def concerns_one_message(error: BrokerError) -> bool:
    """Return whether one message alone may have caused the refusal of a batch."""
    return isinstance(error, RequestError) and not isinstance(error, _CONCERNS_EACH_ALIKE)

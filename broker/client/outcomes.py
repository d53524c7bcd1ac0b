"""The meaning of an answer, or of a missing one: an error class, and whether to retry.

This broker names the outcome in headers (``Broker-Error``, ``Broker-Outcome``, ``Retry-After``).
The original broker has only a status and a text; two functions here read these. If neither explains an
answer, the outcome is *unknown*: the client says that a request failed only if that is certain.

Any other server may answer, too: a proxy, a portal that asks for a login, a service that took over the port. Such an
answer means that the broker is away, whatever its status and its body are::

    status                     a read             a write
    401, 407                   Forbidden          Forbidden: the proxy wants to know the caller
    413                        BodyTooLarge       BodyTooLarge
    408, 503                   Unavailable:       as the broker's (refused for now), if no broker has answered at this address
                               repeated           so far; else OutcomeUnknown
    any other; and 200, with   Unavailable:       OutcomeUnknown: repeated only if that is safe
      a body that no broker    repeated
      sends

An answer of 400 to 499 is another server's if it does not name its outcome, and a broker has answered at the address before,
or its body is none of the original's: that is plain text, and for a missing topic it names the topic.

The pause before a retry is never shorter than the answer's ``Retry-After``. The error names the address and the status.

The client retries a request only if that is safe and useful: the broker refused it for now, or its outcome
is unknown and the request is repeatable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol, TypeVar

from broker.client.client_request import ClientRequest, Reply
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
    QuotaExceeded,
    RequestError,
    StorageCorrupt,
    StorageFull,
    TooManyCursors,
    TooManyMessages,
    TopicExists,
    TopicNotFound,
    TopicRecreated,
    TransactionConflict,
    TransactionFenced,
    TransactionNotInProgress,
    TransactionTooOld,
    Unauthenticated,
    Unavailable,
)
from broker.http.answer import HttpAnswer
from broker.operations.media_types import AVRO, JSON, THRIFT
from broker.wire.jsontext import json_of

T = TypeVar("T")

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
        TransactionFenced,
        TransactionConflict,
        ChangesTooLarge,
        CursorMoved,
        TooManyCursors,
        IdempotencyKeyReused,
        Unauthenticated,
        Forbidden,
        NotAllowed,
        NotInstalled,
        Overloaded,
        QuotaExceeded,
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
    401: Unauthenticated,
    403: Forbidden,
    407: Forbidden,
    405: MethodNotAllowed,
    408: Unavailable,  # The unsolicited 408 of a node that stops: it has read nothing.
    413: BodyTooLarge,
    422: TransactionTooOld,
    503: Unavailable,
    507: StorageFull,
}

_FOREIGN: Final = (
    "another kind of server may listen there, or a proxy answered in the broker's place"
)
_OF_ANY_SERVER: Final = frozenset({401, 407, 413})
"""These statuses refuse a request for good, no matter which server sends them."""
MESSAGE_CHARACTERS_MAX: Final = 2_000
RETRY_AFTER_S_MAX: Final = 300.0
"""The longest ``Retry-After`` that the client follows."""

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
    Unauthenticated,
    Forbidden,
)


class AnswerHead(Protocol):
    """The part of an answer before its body."""

    @property
    def status(self) -> int:
        """Its status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, with names in lower case."""

    @property
    def url(self) -> str:
        """The address that was asked."""


def is_success(status: int) -> bool:
    """Return whether a status says that the broker did the request."""
    return status == 200


def checked(request: ClientRequest, reply: Reply) -> Reply:
    """Return the reply if it is a success; raise the error of any other reply.

    To a write, other servers answer 200, too, for example with a page where a person shall log in. So that is a success
    only with an empty body, or with one of the type that the client expects.
    """
    if not is_success(reply.status):
        raise error_of(request, reply)
    if reply.body and not request.reading and not _is_expected(request, reply):
        raise foreign(request, reply)
    return reply


def understood(request: ClientRequest, reply: Reply, read: Callable[[Reply], T]) -> T:
    """Return what ``read`` finds in a success. If it raises any error, no broker has sent the answer."""
    try:
        return read(reply)
    except Exception as error:
        raise foreign(request, reply) from error


def foreign(request: ClientRequest, reply: AnswerHead) -> BrokerError:
    """Return the error for an answer that no broker sends."""
    told = f"{reply.url or 'A server'} answered with status {reply.status}, but not as a broker does: {_FOREIGN}."
    if not request.reading:
        told += " It is unknown whether a broker carried out the request."
    if isinstance(reply, HttpAnswer) and (text := _message(reply)):
        told += f" Its text: {text:.200}"
    error = Unavailable(told) if request.reading else OutcomeUnknown(told)
    error.retry_after_s = _seconds(reply.headers)
    return error


def is_by_a_proxy(reply: Reply) -> bool:
    """Return whether an error from an address of this project's broker is another server's: the broker names its outcome."""
    refused_by_any = reply.status < 400 or reply.status in _OF_ANY_SERVER
    return not refused_by_any and "broker-outcome" not in reply.headers


def _is_expected(request: ClientRequest, reply: Reply) -> bool:
    """Return whether a body has the type that a request accepts, by default the original's."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        return False
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    expected = request.headers.get("Accept", AVRO)
    return kind == expected or (expected == THRIFT and kind == JSON)


def error_of(request: ClientRequest, reply: Reply) -> BrokerError:
    """Return the error that an unsuccessful reply stands for."""
    message = _message(reply)
    kind = _BY_CODE.get(reply.headers.get("broker-error", ""))
    if kind is NotFound and reply.status == 405:
        kind = MethodNotAllowed
    kind = kind or _kind_by_text(message)
    if kind is None and not _is_explained(request, reply, message):
        return foreign(request, reply)
    kind = kind or _kind_by_status(request, reply.status)
    error = kind(_told(reply, message))
    if isinstance(error, CursorMoved):
        error.cursor = _json(reply).get("cursor")
    outcome = reply.headers.get("broker-outcome")
    if outcome == "unknown":
        error.outcome, error.retriable = "unknown", False
    elif outcome == "refused":
        error.outcome = "refused"
    error.retry_after_s = _seconds(reply.headers)
    return error


def _told(reply: Reply, message: str) -> str:
    """Return the text of an error. This broker's own text is enough; of any other server, name it and its status."""
    if message and "broker-error" in reply.headers:
        return message
    name = reply.url or ("The broker" if "broker-error" in reply.headers else "A server")
    if message:
        return f"{name} answered with status {reply.status}: {message}"
    if "broker-error" in reply.headers:
        return f"{name} answered with status {reply.status}."
    return f"{name} answered with status {reply.status}, but without a broker's error message: {_FOREIGN}."


def _message(reply: Reply) -> str:
    """Return the text in an unsuccessful answer; empty if it has none, or a page for people."""
    kind = reply.headers.get("content-type", "").lower()
    if _is_json(reply):
        told = _json(reply).get("message")
        if isinstance(told, str):
            return told[:MESSAGE_CHARACTERS_MAX]
    text = reply.body[: 4 * MESSAGE_CHARACTERS_MAX].decode(errors="replace").strip()
    if kind.startswith("text/html") or text.startswith("<") or not text.isprintable():
        lines = text.splitlines()
        is_text = "broker-error" in reply.headers and all(line.isprintable() for line in lines)
        return " ".join(lines)[:MESSAGE_CHARACTERS_MAX] if is_text else ""
    return text[:MESSAGE_CHARACTERS_MAX]


def _is_json(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").lower().startswith("application/json")


def _json(reply: Reply) -> Mapping[str, Any]:
    """Return an answer's JSON object; an empty one if the answer has none."""
    try:
        parsed = json_of(reply.body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in a ``Retry-After``: a number, or a date behind that of the answer; None if unreadable."""
    text = headers.get("retry-after", "")
    try:
        if text.isdecimal():
            seconds = float(text)
        else:
            then, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date", ""))
            seconds = (then - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def _kind_by_text(message: str) -> type[BrokerError] | None:
    """Read the texts of the original, where they say more than its status."""
    if message.startswith("Problem accessing: "):  # The 404 is about a path, not a topic.
        return NotFound
    if "has exceeded max lifetime" in message:  # The status is 500, but nothing was done.
        return TransactionTooOld
    return None


def _is_explained(request: ClientRequest, reply: Reply, message: str) -> bool:
    """Return whether a status without broker headers says something about the request: it may be the original's."""
    status = reply.status
    if "broker-error" in reply.headers or status in _OF_ANY_SERVER:
        return True
    if not 400 <= status < 500 or status == 408:
        return True  # Any server's: see ``_kind_by_status``.
    if status in {425, 429} or not message or _is_json(reply):
        return False
    return status != 404 or (request.topic is not None and request.topic.topic in message)


def _kind_by_status(request: ClientRequest, status: int) -> type[BrokerError]:
    """Read a status without broker headers, as from the original. An unexplained status is unknown."""
    if status == 404:
        return TopicNotFound if request.topic is not None else NotFound
    if status == 409:
        return TopicExists if request.method == "PUT" else PayloadsSealed
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return RequestError
    return Unavailable if request.reading else OutcomeUnknown


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

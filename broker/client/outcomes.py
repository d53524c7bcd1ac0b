"""What an answer, or the lack of one, means: an error by its name, and whether to try again.

This broker says in headers what happened (``Broker-Error``, ``Broker-Outcome``, ``Retry-After``).
The original says it with the status and a text, which two tables here read. Anything that neither
explains is *unknown*: the client never claims that something failed when it can't tell.

A request is tried again only if that is safe and useful: the broker refused it for now, or nobody
knows and the request is repeatable.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from typing import Any, Final

from broker.client.protocol import ClientRequest, Reply
from broker.errors import (
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
    TransactionConflict,
    TransactionNotInProgress,
    TransactionTooOld,
    Unavailable,
)

_BY_CODE: Final[dict[str, type[BrokerError]]] = {
    error.code: error
    for error in (
        BadRequest,
        BadName,
        BodyTooLarge,
        TooManyMessages,
        TopicNotFound,
        TopicExists,
        NotFound,
        PayloadsSealed,
        TransactionTooOld,
        TransactionNotInProgress,
        TransactionConflict,
        ChangesTooLarge,
        CursorMoved,
        TooManyCursors,
        IdempotencyKeyReused,
        Forbidden,
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
    408: Unavailable,  # The last words of a node that stops: nothing was read.
    413: BodyTooLarge,
    422: TransactionTooOld,
    503: Unavailable,
    507: StorageFull,
}

NO_BROKER: Final = "A server answered with status 404 and without the words of a broker: another kind of server may listen there."

UNREACHED: Final = "The broker could not be reached: "
"""Begins the message of the error for a request of which no broker has seen anything."""

_CONNECT_FAILED: Final = re.compile(
    r"\[Errno (\d+)\] Connect call failed \('([^']+)', (\d+)[^)]*\)"
)

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")

_CONCERNS_EACH_ALIKE: Final = (TopicNotFound, BadName, NotFound, MethodNotAllowed, Forbidden)


def succeeded(reply: Reply) -> bool:
    """Whether the broker did what was asked."""
    return 200 <= reply.status < 300


def checked(request: ClientRequest, reply: Reply) -> Reply:
    """Return the reply of a success. Raises the error that another one stands for."""
    if not succeeded(reply):
        raise error_of(request, reply)
    return reply


def error_of(request: ClientRequest, reply: Reply) -> BrokerError:
    """Return the error that a reply other than a success stands for."""
    message = _message(reply) or f"The broker answered with status {reply.status}."
    kind = _BY_CODE.get(reply.headers.get("broker-error", ""))
    if kind is NotFound and reply.status == 405:
        kind = MethodNotAllowed
    if kind is None and reply.status == 404 and _is_no_brokers(reply):
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


def _is_no_brokers(reply: Reply) -> bool:
    """Whether an answer looks like that of a web server: both kinds of broker say in plain words what is missing."""
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
    """Return an answer's JSON object, an empty one if it is none."""
    try:
        told = json.loads(reply.body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:  # A date is allowed there too; the client's own delays serve as well.
        return None


def _kind_by_text(message: str) -> type[BrokerError] | None:
    """Read the texts of the original where its status says less than they do."""
    if message.startswith("Problem accessing: "):  # 404 of a path, not of a topic.
        return NotFound
    if "has exceeded max lifetime" in message:  # 500, though nothing was done.
        return TransactionTooOld
    return None


def _kind_by_status(request: ClientRequest, status: int) -> type[BrokerError]:
    """Read a bare status, as the original answers; what none explains is unknown."""
    if status == 404:
        return TopicNotFound if request.topic is not None else NotFound
    if status == 409:
        return TopicExists if request.method == "PUT" else PayloadsSealed
    if 400 <= status < 500 and status not in _BY_STATUS:
        return RequestError
    return _BY_STATUS.get(status, BrokerError if request.reading else OutcomeUnknown)


def never_sent(reason: object) -> BrokerError:
    """Return the error for a request of which the broker has certainly seen nothing."""
    return Unavailable(f"{UNREACHED}{_plain(reason)}")


def _plain(reason: object) -> str:
    """Return the reason of a failed connection as people say it."""
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
    """Return the error for a write of which an early attempt got no answer and a later was refused.

    The refusal is that of the later attempt; what became of the earlier one nobody knows.
    """
    return OutcomeUnknown(
        "An earlier attempt got no answer and may have been carried out; the last one was refused: "
        f"{error.message}"
    )


def gave_up() -> BrokerError:
    """Return the error for a write that was under way when the client was closed."""
    return OutcomeUnknown("The client was closed before an answer came.")


def worth_retrying(request: ClientRequest, error: BrokerError) -> bool:
    """Whether the same request, sent again, is both safe and useful."""
    if error.outcome == "refused":
        return error.retriable
    return request.repeatable and isinstance(error, OutcomeUnknown | StorageFull)


def delay_s(
    error: BrokerError, attempt: int, minimum_s: float, maximum_s: float, rng: random.Random
) -> float:
    """Return how long to wait before attempt ``attempt`` + 1 (the first is 1).

    The pause doubles and is drawn from its upper half, so that clients that failed together do not
    come back together; what the broker asks for is waited in any case.
    """
    pause = min(maximum_s, minimum_s * float(1 << min(attempt - 1, 30)))
    jittered = pause * rng.uniform(0.5, 1.0)
    return max(jittered, error.retry_after_s or 0.0)


def concerns_one_message(error: BrokerError) -> bool:
    """Whether a refusal of many messages together may be the fault of one among them."""
    return isinstance(error, RequestError) and not isinstance(error, _CONCERNS_EACH_ALIKE)

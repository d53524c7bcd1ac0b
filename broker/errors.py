"""Every way in which a request can end badly, in one registry.

::

    BrokerError
    ├── RequestError          the request is wrong; repeating it is no use        (4xx, 501)
    │   ├── BadRequest  BadName  BodyTooLarge  TooManyMessages
    │   ├── TopicNotFound  TopicExists  NotFound  MethodNotAllowed
    │   ├── PayloadsSealed  TransactionTooOld  IdempotencyKeyReused
    │   ├── CursorMoved  TooManyCursors
    │   └── Forbidden  NotInstalled
    ├── UnavailableError      definitely not done; repeating it later may succeed (503, 507, 421)
    │   ├── Overloaded  NoLeader  NotLeader  ClockSkew  Unavailable
    │   ├── StorageFull
    │   └── Fenced            a leader met a higher epoch; never leaves a node
    ├── OutcomeUnknown        it may have been done, or be done yet
    └── StorageCorrupt        stop: what is stored can't be trusted

``outcome`` is the point of it all: *refused* means that the request has certainly had no effect and
never will; *unknown* means that it may have been done or not. An error that is not in this tree is *unknown*.
``retriable`` says whether the same request, sent again unchanged, is both safe and useful.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Outcome = Literal["refused", "unknown"]


class BrokerError(Exception):
    """An unexpected error; the log has its cause under the request's `X-Request-Id`.

    All that is foreseen is a subclass. ``code`` is stable and part of the interface.
    """

    code: ClassVar[str] = "internal"
    http_status: int = 500
    retriable: bool = False
    outcome: Outcome = "unknown"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Keep the text for people and, where known, the seconds to wait before a retry."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class RequestError(BrokerError):
    """The request itself is wrong. Nothing was done."""

    code = "bad_request"
    http_status = 400
    outcome = "refused"


class BadRequest(RequestError):
    """Malformed body, parameter or header."""


class BadName(RequestError):
    """A namespace or topic name with characters that names can't have."""

    code = "bad_name"


class BodyTooLarge(RequestError):
    """The body, or what it inflates to, or one message, is over a limit."""

    code = "body_too_large"
    http_status = 413


class TooManyMessages(RequestError):
    """More messages in one request than ``messages_per_request_max``."""

    code = "too_many_messages"
    http_status = 413


class TopicNotFound(RequestError):
    """No such topic, or it was deleted."""

    code = "topic_not_found"
    http_status = 404


class TopicExists(RequestError):
    """A topic of that name exists already."""

    code = "topic_exists"
    http_status = 409


class NotFound(RequestError):
    """No such path, no such cursor, no such node, or no cluster."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    code = "not_found"
    http_status = 405


class PayloadsSealed(RequestError):
    """The transaction's stored payloads were published already: nothing can be added."""

    code = "payloads_sealed"
    http_status = 409


class TransactionTooOld(RequestError):
    """The transaction is past its longest life."""

    code = "transaction_too_old"
    http_status = 422


class TransactionNotInProgress(RequestError):
    """The transaction is over, or its time has passed and it is invalid."""

    code = "transaction_not_in_progress"
    http_status = 409


class TransactionConflict(RequestError):
    """A transaction that was committed since this one began changed the same."""

    code = "transaction_conflict"
    http_status = 409

    def __init__(self, message: str, *, key: bytes | None = None) -> None:
        """Keep the text, and the key that both changed, if it is known."""
        super().__init__(message)
        self.key = key


class ChangesTooLarge(RequestError):
    """The transaction's change set has more, or larger, keys than the service takes."""

    code = "changes_too_large"
    http_status = 413


class IdempotencyKeyReused(RequestError):
    """The key came before, with another body."""

    code = "idempotency_key_reused"
    http_status = 422


class CursorMoved(RequestError):
    """The cursor is not at the version that the request expects: somebody else moved, made or deleted it.

    ``cursor`` is what is there, as the interface shows it; None: there is no such cursor.
    """

    code = "cursor_moved"
    http_status = 409

    def __init__(self, message: str, *, cursor: Mapping[str, Any] | None = None) -> None:
        """Keep the text and the cursor that is there."""
        super().__init__(message)
        self.cursor = cursor


class TooManyCursors(RequestError):
    """The topic has as many cursors as it may have (`topics.cursors_max`)."""

    code = "too_many_cursors"
    http_status = 409


class Forbidden(RequestError):
    """The caller may not do this, or a browser asks for a page of another site (`Origin`, `Host`)."""

    code = "forbidden"
    http_status = 403


class NotInstalled(RequestError):
    """This node lacks a package that the answer needs; the message names the extra that brings it."""

    code = "not_installed"
    http_status = 501


class UnavailableError(BrokerError):
    """Not done, and will not be; the same request may succeed later."""

    code = "overloaded"
    http_status = 503
    retriable = True
    outcome: Outcome = "refused"


class Unavailable(UnavailableError):
    """A server that is needed does not answer; definitely nothing was done."""

    code = "no_leader"


class Overloaded(UnavailableError):
    """A bound of this node is reached."""


class NoLeader(UnavailableError):
    """No node leads the topic just now."""

    code = "no_leader"


class NotLeader(UnavailableError):
    """Another node leads; between nodes only. ``node``, ``url``, ``epoch`` say what is known of it."""

    code = "not_leader"
    http_status = 421

    def __init__(
        self,
        message: str,
        *,
        node: int | None = None,
        url: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """Keep the text and which node to ask instead."""
        super().__init__(message)
        self.node = node
        self.url = url
        self.epoch = epoch


class ClockSkew(UnavailableError):
    """This node's clock can't be trusted."""

    code = "clock_skew"


class StorageFull(UnavailableError):
    """The disk is full. ``outcome`` may be set to unknown for a request that was under way."""

    code = "storage_full"
    http_status = 507

    def __init__(self, message: str, *, outcome: Outcome = "refused") -> None:
        """Keep the text and whether this very request may have been stored."""
        super().__init__(message)
        self.outcome = outcome
        self.retriable = outcome == "refused"


class Fenced(UnavailableError):
    """A higher epoch holds the log; this request was certainly not committed."""

    code = "no_leader"


class OutcomeUnknown(BrokerError):
    """It may have been done. Not retriable, unless the client itself sent an idempotency key."""

    code = "outcome_unknown"
    http_status = 500

    def under_key(self) -> OutcomeUnknown:
        """Return the same error for a client that sent a key: it may repeat the request under it."""
        error = OutcomeUnknown(self.message, retry_after_s=self.retry_after_s)
        error.http_status = 503
        error.retriable = True
        return error


class StorageCorrupt(BrokerError):
    """What is stored does not make sense; nothing is served from it and nothing is mended."""

    code = "storage_corrupt"
    http_status = 500


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installation that runs this.

    It names this interpreter, since a bare ``pip`` may belong to another one. pip knows the package that is
    installed, from a checkout or from a wheel, so no index needs to have it.
    """
    return f"{shlex.quote(sys.executable)} -m pip install 'tms-broker[{extra}]'"


def _tree(error: type[BrokerError]) -> list[type[BrokerError]]:
    return [error, *(leaf for child in error.__subclasses__() for leaf in _tree(child))]


def registry() -> list[type[BrokerError]]:
    """Return every error class, the root first."""
    return _tree(BrokerError)

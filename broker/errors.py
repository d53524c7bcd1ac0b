"""All errors of requests, in one registry.

::

    BrokerError
    ├── RequestError          the request is wrong; repeating it does not help    (4xx, 501)
    │   ├── BadRequest  BadName  BodyTooLarge  TooManyMessages
    │   ├── TopicNotFound  TopicExists  TopicRecreated  NotFound  MethodNotAllowed
    │   ├── PayloadsSealed  AlreadyPublished  IdempotencyKeyReused  CursorMoved  TooManyCursors
    │   ├── TransactionTooOld  TransactionNotInProgress (TransactionFenced)
    │   ├── TransactionConflict  ChangesTooLarge
    │   └── Forbidden  NotAllowed  NotInstalled
    ├── UnavailableError      definitely not done; repeating it later may succeed (503, 507, 421)
    │   ├── Overloaded  NoLeader  NotLeader  ClockSkew  Unavailable
    │   ├── StorageFull
    │   └── Fenced            a leader met a higher epoch; a client gets no_leader
    ├── OutcomeUnknown        the request may have been done, or be done later
    └── StorageCorrupt        stop: the stored data can't be trusted

Each error has an ``outcome``: *refused* means that the request certainly had no effect and never will; *unknown*
means that it may have been done. An error outside this tree counts as *unknown*.
``retriable`` is True if sending the same request again, unchanged, is both safe and useful.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

Outcome = Literal["refused", "unknown"]


class BrokerError(Exception):
    """An unexpected error; the log has its cause under the request's `X-Request-Id`.

    Every expected error is a subclass. ``code`` is stable and part of the interface.
    """

    code: ClassVar[str] = "internal"
    http_status: int = 500
    retriable: bool = False
    outcome: Outcome = "unknown"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Keep the text for people and, if known, the seconds to wait before a retry."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class RequestError(BrokerError):
    """The request itself is wrong. It had no effect."""

    code = "bad_request"
    http_status = 400
    outcome = "refused"


class BadRequest(RequestError):
    """A body, parameter or header is malformed."""


class BadName(RequestError):
    """The name of a namespace or topic has characters that are not allowed."""

    code = "bad_name"


class BodyTooLarge(RequestError):
    """The body, the decompressed body, or one message is larger than its limit."""

    code = "body_too_large"
    http_status = 413


class TooManyMessages(RequestError):
    """The request has more messages than ``messages_per_request_max``."""

    code = "too_many_messages"
    http_status = 413


class TopicNotFound(RequestError):
    """The topic does not exist, or was deleted."""

    code = "topic_not_found"
    http_status = 404


class TopicExists(RequestError):
    """A topic with this name exists already."""

    code = "topic_exists"
    http_status = 409


class TopicRecreated(RequestError):
    """The request has a place in another generation: the topic was deleted and created again."""

    code = "topic_recreated"
    http_status = 410

    @classmethod
    def between(cls, topic: object, asked: int, present: int) -> TopicRecreated:
        """Return the error for a place in generation ``asked`` of a topic that has generation ``present``."""
        return cls(
            f"Topic {topic} was deleted and created again: the place is in generation {asked}, and the topic has "
            f"generation {present} now. To go on with the new topic, start at its oldest message."
        )


class NotFound(RequestError):
    """The path, the cursor or the node does not exist, or this node is in no cluster."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    code = "not_found"
    http_status = 405


class PayloadsSealed(RequestError):
    """The transaction's stored payloads were published already: no more can be stored."""

    code = "payloads_sealed"
    http_status = 409


class AlreadyPublished(RequestError):
    """A repeated publish was done before, under another write pointer, or was rolled back since."""

    code = "already_published"
    http_status = 409


class TransactionTooOld(RequestError):
    """The transaction is older than the longest life of a transaction."""

    code = "transaction_too_old"
    http_status = 422


class TransactionNotInProgress(RequestError):
    """The transaction has ended, or its time-out has passed and it is invalid."""

    code = "transaction_not_in_progress"
    http_status = 409


class TransactionFenced(TransactionNotInProgress):
    """Another program has begun a transaction under the same name since, so this program may not use the name."""

    code = "transaction_fenced"


class TransactionConflict(RequestError):
    """Another transaction changed the same key, and was committed after this one began."""

    code = "transaction_conflict"
    http_status = 409

    def __init__(self, message: str, *, key: bytes | None = None) -> None:
        """Keep the text, and the key that both transactions changed, if it is known."""
        super().__init__(message)
        self.key = key


class ChangesTooLarge(RequestError):
    """The transaction's change set has more keys, or larger keys, than the service takes."""

    code = "changes_too_large"
    http_status = 413


class IdempotencyKeyReused(RequestError):
    """An earlier request had the same key, with another body."""

    code = "idempotency_key_reused"
    http_status = 422


class CursorMoved(RequestError):
    """The cursor has another version than the request expects: another client moved, made or deleted it.

    ``cursor`` is the present cursor, in the form of the interface; None: there is no such cursor.
    """

    code = "cursor_moved"
    http_status = 409

    def __init__(self, message: str, *, cursor: Mapping[str, Any] | None = None) -> None:
        """Keep the text and the present cursor."""
        super().__init__(message)
        self.cursor = cursor


class TooManyCursors(RequestError):
    """The topic has reached its limit of cursors (`topics.cursors_max`)."""

    code = "too_many_cursors"
    http_status = 409


class Forbidden(RequestError):
    """The caller may not do this, or a browser sends the request for a page of another site (`Origin`, `Host`)."""

    code = "forbidden"
    http_status = 403


class NotAllowed(RequestError):
    """This node's configuration does not allow the operation; the message names the key that allows it."""

    code = "not_allowed"
    http_status = 403


class NotInstalled(RequestError):
    """This node lacks a package that the answer needs; the message names the extra to install."""

    code = "not_installed"
    http_status = 501


class UnavailableError(BrokerError):
    """The request had no effect and never will; the same request may succeed later."""

    code = "overloaded"
    http_status = 503
    retriable = True
    outcome: Outcome = "refused"


class Unavailable(UnavailableError):
    """A server that the request needs does not answer; certainly nothing was done."""

    code = "no_leader"


class Overloaded(UnavailableError):
    """A limit of this node is reached."""


class NoLeader(UnavailableError):
    """No node leads the topic at the moment."""

    code = "no_leader"


class NotLeader(UnavailableError):
    """Another node leads; only nodes get this error. ``node``, ``url``, ``epoch`` describe the leader, if known."""

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
        """Keep the text and the leader."""
        super().__init__(message)
        self.node = node
        self.url = url
        self.epoch = epoch


class ClockSkew(UnavailableError):
    """This node's clock can't be trusted."""

    code = "clock_skew"


class StorageFull(UnavailableError):
    """The disk is full. ``outcome`` can be unknown for a request in flight."""

    code = "storage_full"
    http_status = 507

    def __init__(self, message: str, *, outcome: Outcome = "refused") -> None:
        """Keep the text, and whether this request may have been stored (*unknown*)."""
        super().__init__(message)
        self.outcome = outcome
        self.retriable = outcome == "refused"


class Fenced(UnavailableError):
    """A higher epoch holds the log; this request was certainly not committed."""

    code = "no_leader"


class OutcomeUnknown(BrokerError):
    """The request may have been done. It is not retriable, unless the client sent an idempotency key."""

    code = "outcome_unknown"
    http_status = 500

    def under_key(self) -> OutcomeUnknown:
        """Return the same error for a client that sent a key, and so may retry the request."""
        error = OutcomeUnknown(self.message, retry_after_s=self.retry_after_s)
        error.http_status = 503
        error.retriable = True
        return error


class StorageCorrupt(BrokerError):
    """The stored data are damaged; the broker neither serves nor repairs them."""

    code = "storage_corrupt"
    http_status = 500


class TaskFailed(Exception):
    """A task of a command, such as an export, can't go on. The message is for its user: the reason, and what to do."""

    outcome: ClassVar[Outcome] = "refused"

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self)


class DoneInPart(TaskFailed):
    """A task failed after it had done a part of its work, or may have done it."""

    outcome = "unknown"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installation that runs this.

    It names this interpreter, because a bare ``pip`` may belong to another one. pip knows the installed package,
    from a checkout or from a wheel, so the package need not be in an index.
    """
    return f"{shlex.quote(sys.executable)} -m pip install 'tms-broker[{extra}]'"


@contextmanager
def importing(extra: str) -> Generator[None]:
    """Import the parts of a package that needs an extra, in this block.

    Raises:
        ModuleNotFoundError: the extra is not installed; the text has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == __package__:
            raise
        raise ModuleNotFoundError(
            f"The package {package!r} of the extra {extra!r} is missing: {install_command(extra)}",
            name=error.name,
        ) from error


def _tree(error: type[BrokerError]) -> list[type[BrokerError]]:
    return [error, *(leaf for child in error.__subclasses__() for leaf in _tree(child))]


def registry() -> list[type[BrokerError]]:
    """Return every error class, the root first."""
    return _tree(BrokerError)

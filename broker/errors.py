"""All errors of requests, in one registry.

The head of each class declares its code and its HTTP status. Its parent decides the rest::

    RequestError          the request is wrong; repeating it does not help       4xx, 501
    UnavailableError      definitely not done; repeating it later may succeed    503, 507, 421
    OutcomeUnknown        the request may have been done, or be done later
    StorageCorrupt        stop: the stored data can't be trusted

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

from typing_extensions import override

Outcome = Literal["refused", "unknown"]


class BrokerError(Exception):
    """An unexpected error; the log has its cause under the request's `X-Request-Id`.

    Every expected error is a subclass. ``code`` is stable and part of the interface.
    """

    code: ClassVar[str] = "internal"
    http_status: int = 500
    retriable: bool = False
    outcome: Outcome = "unknown"

    @override
    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        """Declare an error. What it does not give is its parent's."""
        cls.code = code or cls.code
        cls.http_status = status or cls.http_status

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Keep the text for people and, if known, the seconds to wait before a retry."""
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class RequestError(BrokerError, code="bad_request", status=400):
    """The request itself is wrong. It had no effect."""

    outcome = "refused"


class BadRequest(RequestError):
    """A body, parameter or header is malformed."""


class BadName(RequestError, code="bad_name"):
    """The name of a namespace or topic has characters that are not allowed."""


class BodyTooLarge(RequestError, code="body_too_large", status=413):
    """The body, the decompressed body, or one message is larger than its limit."""


class TooManyMessages(RequestError, code="too_many_messages", status=413):
    """The request has more messages than ``messages_per_request_max``."""


class TopicNotFound(RequestError, code="topic_not_found", status=404):
    """The topic does not exist, or was deleted."""


class TopicExists(RequestError, code="topic_exists", status=409):
    """A topic with this name exists already."""


class TopicRecreated(RequestError, code="topic_recreated", status=410):
    """The request has a place in another generation: the topic was deleted and created again."""

    @classmethod
    def between(cls, topic: object, asked: int, present: int) -> TopicRecreated:
        """Return the error for a place in generation ``asked`` of a topic that has generation ``present``."""
        return cls(
            f"Topic {topic} was deleted and created again: the place is in generation {asked}, and the topic has "
            f"generation {present} now. To go on with the new topic, start at its oldest message."
        )


class NotFound(RequestError, code="not_found", status=404):
    """The path, the cursor or the node does not exist, or this node is in no cluster."""


class MethodNotAllowed(RequestError, code="not_found", status=405):
    """The path exists, but not for this method."""


class PayloadsSealed(RequestError, code="payloads_sealed", status=409):
    """The transaction's stored payloads were published already: no more can be stored."""


class AlreadyPublished(RequestError, code="already_published", status=409):
    """A repeated publish was done before, under another write pointer, or was rolled back since."""


class TransactionTooOld(RequestError, code="transaction_too_old", status=422):
    """The transaction is older than the longest life of a transaction."""


class TransactionNotInProgress(RequestError, code="transaction_not_in_progress", status=409):
    """The transaction has ended, or its time-out has passed and it is invalid."""


class TransactionFenced(TransactionNotInProgress, code="transaction_fenced"):
    """Another program has begun a transaction under the same name since, so this program may not use the name."""


class TransactionConflict(RequestError, code="transaction_conflict", status=409):
    """Another transaction changed the same key, and was committed after this one began."""

    def __init__(self, message: str, *, key: bytes | None = None) -> None:
        """Keep the text, and the key that both transactions changed, if it is known."""
        super().__init__(message)
        self.key = key


class ChangesTooLarge(RequestError, code="changes_too_large", status=413):
    """The transaction's change set has more keys, or larger keys, than the service takes."""


class IdempotencyKeyReused(RequestError, code="idempotency_key_reused", status=422):
    """An earlier request had the same key, with another body."""


class CursorMoved(RequestError, code="cursor_moved", status=409):
    """The cursor has another version than the request expects: another client moved, made or deleted it.

    ``cursor`` is the present cursor, in the form of the interface; None: there is no such cursor.
    """

    def __init__(self, message: str, *, cursor: Mapping[str, Any] | None = None) -> None:
        """Keep the text and the present cursor."""
        super().__init__(message)
        self.cursor = cursor


class TooManyCursors(RequestError, code="too_many_cursors", status=409):
    """The topic has reached its limit of cursors (`topics.cursors_max`)."""


class Forbidden(RequestError, code="forbidden", status=403):
    """The caller may not do this, or a browser sends the request for a page of another site (`Origin`, `Host`)."""


class Unauthenticated(RequestError, code="unauthenticated", status=401):
    """The request names no caller, or its credentials are not valid (any more)."""


class NotAllowed(RequestError, code="not_allowed", status=403):
    """This node's configuration does not allow the operation; the message names the key that allows it."""


class NotInstalled(RequestError, code="not_installed", status=501):
    """This node lacks a package that the answer needs; the message names the extra to install."""


class UnavailableError(BrokerError, code="overloaded", status=503):
    """The request had no effect and never will; the same request may succeed later."""

    retriable = True
    outcome: Outcome = "refused"


class Unavailable(UnavailableError, code="no_leader"):
    """A server that the request needs does not answer; certainly nothing was done."""


class Overloaded(UnavailableError):
    """A limit of this node is reached."""


class NoLeader(UnavailableError, code="no_leader"):
    """No node leads the topic at the moment."""


class NotLeader(UnavailableError, code="not_leader", status=421):
    """Another node leads; only nodes get this error. ``node``, ``url``, ``epoch`` describe the leader, if known."""

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


class ClockSkew(UnavailableError, code="clock_skew"):
    """This node's clock can't be trusted."""


class StorageFull(UnavailableError, code="storage_full", status=507):
    """The disk is full. ``outcome`` can be unknown for a request in flight."""

    def __init__(self, message: str, *, outcome: Outcome = "refused") -> None:
        """Keep the text, and whether this request may have been stored (*unknown*)."""
        super().__init__(message)
        self.outcome = outcome
        self.retriable = outcome == "refused"


class Fenced(UnavailableError, code="no_leader"):
    """A higher epoch holds the log; this request was certainly not committed."""


class QuotaExceeded(UnavailableError, code="quota_exceeded", status=429):
    """The caller, or the topic, has used up a quota; the message names it. ``Retry-After`` tells when to try again.

    ``kind`` is the kind of quota.
    """

    def __init__(self, message: str, *, kind: str = "", retry_after_s: float | None = None) -> None:
        """Keep the text, the kind, and when to try again."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.kind = kind


class OutcomeUnknown(BrokerError, code="outcome_unknown"):
    """The request may have been done. It is not retriable, unless the client sent an idempotency key."""

    def under_key(self) -> OutcomeUnknown:
        """Return the same error for a client that sent a key, and so may retry the request."""
        error = OutcomeUnknown(self.message, retry_after_s=self.retry_after_s)
        error.http_status = 503
        error.retriable = True
        return error


class StorageCorrupt(BrokerError, code="storage_corrupt"):
    """The stored data are damaged; the broker neither serves nor repairs them."""


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


class CannotListen(OSError):
    """A server can't listen at an address. ``cause`` is the system's error."""

    def __init__(self, cause: OSError, host: str, port: int) -> None:
        super().__init__(cause.errno, f"can't listen on {host}:{port}: {cause}")
        self.cause = cause
        self.host = host
        self.port = port


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


def registry(root: type[BrokerError] = BrokerError) -> list[type[BrokerError]]:
    """Return every error class from ``root`` on, which is the first."""
    return [root, *(each for child in root.__subclasses__() for each in registry(child))]

"""How a storage that lies elsewhere has been answering, for the views of this node's state.

It tells what was, not what will be: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

CANCELLED: Final = "cancelled"


class CallOutcome(NamedTuple):
    """How a call ended.

    ``kind`` says what went wrong: refused, told, cut, silent; None: nothing. *cancelled* says nothing of the
    call: its caller went away.
    """

    call: str
    seconds: float
    kind: str | None = None
    message: str | None = None


class StorageHealth(NamedTuple):
    """The calls of one node, since it started. Moments are ms since 1970; None: never yet."""

    calls: int = 0
    errors: int = 0
    last_success_ms: int | None = None
    last_failure_ms: int | None = None
    last_error: str | None = None


class CallHealth:
    """Counts calls as they end. Told and asked on the event loop."""

    __slots__ = (
        "_calls",
        "_errors",
        "_last_error",
        "_last_failure_ms",
        "_last_success_ms",
        "_now_ms",
    )

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Start at nothing; ``now_ms`` is the node's clock."""
        self._now_ms = now_ms
        self._calls = self._errors = 0
        self._last_success_ms: int | None = None
        self._last_failure_ms: int | None = None
        self._last_error: str | None = None

    @property
    def so_far(self) -> StorageHealth:
        """What was counted."""
        return StorageHealth(
            self._calls,
            self._errors,
            self._last_success_ms,
            self._last_failure_ms,
            self._last_error,
        )

    def ended(self, kind: str | None, message: str | None) -> None:
        """Count a call by how it ended: ``kind`` None is a success, ``cancelled`` says nothing."""
        if kind is None:
            self.succeeded()
        elif kind != CANCELLED:
            self.failed(message or kind)

    def succeeded(self) -> None:
        """Count a call that was answered as it should be, a plain *no* included."""
        self._calls += 1
        self._last_success_ms = self._now_ms()

    def failed(self, error: str) -> None:
        """Count a call that was refused, failed, or got no answer."""
        self._calls += 1
        self._errors += 1
        self._last_failure_ms = self._now_ms()
        self._last_error = error

"""Counts of a remote storage's answers, for the views of this node's state.

They describe the past only. The broker makes no decision by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

CANCELLED: Final = "cancelled"


class CallOutcome(NamedTuple):
    """How a call ended.

    ``kind`` is the kind of failure: refused, told, cut, silent; None after a success. *cancelled* is neither:
    the caller went away before the call ended.
    """

    call: str
    seconds: float
    kind: str | None = None
    message: str | None = None


class StorageHealth(NamedTuple):
    """The calls of one node since it started. Times are ms since 1970; None: not yet."""

    calls: int = 0
    errors: int = 0
    last_success_ms: int | None = None
    last_failure_ms: int | None = None
    last_error: str | None = None


class CallHealth:
    """Counts calls as they end. All calls of it are on the event loop."""

    __slots__ = (
        "_calls",
        "_errors",
        "_last_error",
        "_last_failure_ms",
        "_last_success_ms",
        "_now_ms",
    )

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Start with zero calls; ``now_ms`` is the node's clock."""
        self._now_ms = now_ms
        self._calls = self._errors = 0
        self._last_success_ms: int | None = None
        self._last_failure_ms: int | None = None
        self._last_error: str | None = None

    @property
    def so_far(self) -> StorageHealth:
        """The counts until now."""
        return StorageHealth(
            self._calls,
            self._errors,
            self._last_success_ms,
            self._last_failure_ms,
            self._last_error,
        )

    def ended(self, kind: str | None, message: str | None) -> None:
        """Count a call by how it ended; for ``kind`` and ``message`` see CallOutcome.

        An answer of *no*, for a change that was not made, is a success. A cancelled call does not count.
        """
        if kind == CANCELLED:
            return
        self._calls += 1
        if kind is None:
            self._last_success_ms = self._now_ms()
        else:
            self._errors += 1
            self._last_failure_ms = self._now_ms()
            self._last_error = message or kind

"""Write moments in RFC 3339, the form for people. The module ``moments`` reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from broker.moments import MOMENT_MAX_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(time_ms: int) -> str:
    """Return a moment in UTC with milliseconds. A moment outside the calendar becomes its first or last one."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, 0), MOMENT_MAX_MS))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def rfc3339_or_none(time_ms: int) -> str | None:
    """Return a moment in UTC, or None if it lies beyond the calendar."""
    return rfc3339(time_ms) if 0 <= time_ms <= MOMENT_MAX_MS else None

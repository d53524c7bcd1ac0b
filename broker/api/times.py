"""Read and write moments in RFC 3339, the form for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from broker.errors import BadRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_MOMENT = re.compile(
    # A "+" that the client did not escape arrives as a space.
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+ -])(\d\d:\d\d))",
    re.ASCII,
)


def rfc3339(time_ms: int) -> str:
    """Return a moment in UTC with milliseconds. A moment outside the calendar becomes its first or last one."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, 0), _MS_MAX))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def rfc3339_or_none(time_ms: int) -> str | None:
    """Return a moment in UTC, or None if it lies beyond the calendar."""
    return rfc3339(time_ms) if 0 <= time_ms <= _MS_MAX else None


def parse_moment(text: str) -> int:
    """Return the ms since 1970 of an RFC 3339 moment.

    Raises BadRequest, which names all forms of a place.
    """
    match = _MOMENT.fullmatch(text)
    if match:
        date, time, fraction, zulu, sign, offset = match.groups()
        zone = "+00:00" if zulu else ("-" if sign == "-" else "+") + offset
        micros = (fraction or "")[:6].ljust(6, "0")
        try:
            moment = datetime.fromisoformat(f"{date}T{time}.{micros}{zone}")
        except ValueError:
            pass
        else:
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    raise BadRequest(
        f"{text!a:.80} is neither a message id (40 hex digits), ms since 1970, nor a moment such as "
        "2026-11-20T12:34:56.789Z."
    )

"""Moments and spans of time as people and programs write them: the one parser and the one writer of every door.

::

    moment   2026-01-31T12:00:00.5Z   2026-01-31 12:00+01:00   2026-01-31 (midnight)   1769860800000 (ms since 1970)
    span     500ms   30s   15m   1.5h   12h   1d   2w   90 (in the unit that the door names)

Rules, the same at every door:

* A text without a zone is in UTC, as all times that the broker writes. A datetime without a zone is refused: Python takes
  it for the local time of the machine, so it would be another moment on another machine.
* A number is in ms since 1970. A number that is certainly of another unit is refused: seconds, an age or 20260131 would
  be a day of 1970, and a reader would begin with the oldest message; microseconds and nanoseconds lie behind the year
  9999. 0 is the oldest message.
* Times of messages are whole ms, and a moment stands for the first message that is not older. So a fraction of a ms is
  rounded up. A moment before May 1970 is 0.

Errors are ValueErrors; each door adds the name of its parameter.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
MOMENT_MAX_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS
"""The last moment of the year 9999."""
SECONDS: Final = range(10**9, 10**10)
"""Times from 2001 to 2286, as seconds since 1970. As ms they are days from January to April 1970."""
_MOMENT: Final = re.compile(
    # A "+" that a client did not escape in a query arrives as a space.
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(?:(:\d\d)(?:\.(\d{1,9}))?)?)?(?:([Zz])|([+ -])(\d\d):?(\d\d))?",
    re.ASCII,
)
_NUMBER: Final = r"(?:\d{1,12}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?"
_SPAN: Final = re.compile(rf"({_NUMBER})(ms|s|min|m|h|d|w)?", re.ASCII)
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
SPAN_MAX_MS: Final = 10_000 * 366 * 86_400_000
MOMENT_FORMS: Final = "a moment such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
SPAN_FORMS: Final = "a duration, such as 500ms, 30s, 15m, 12h, 1d or 2w"


def checked_ms(number: int) -> int:
    """Return a number of ms since 1970, if it can be one. Raises ValueError, which names the unit that it seems to have."""
    if number in SECONDS:
        raise ValueError(f"{number} looks like seconds since 1970. Give ms: {number * 1000}.")
    if 0 < number < SECONDS.start:
        raise ValueError(
            f"{number} is a time of January 1970 in ms, so it has another unit. Give ms since 1970, such as "
            "1769860800000; 0 is the beginning."
        )
    if number > MOMENT_MAX_MS:
        for unit, per_ms in (("microseconds", 10**3), ("nanoseconds", 10**6)):
            if number // per_ms <= MOMENT_MAX_MS // 100:
                raise ValueError(
                    f"{number} looks like {unit} since 1970. Give ms: {number // per_ms}."
                )
    if not 0 <= number <= MOMENT_MAX_MS:
        raise ValueError(f"{number} is not a time in ms since 1970, up to the year 9999.")
    return number


def moment_of(text: str) -> int:
    """Return the ms since 1970 of a moment's text. Raises ValueError."""
    if text.isascii() and text.isdecimal():
        return checked_ms(int(text) if len(text) <= 30 else 10**30)
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!a:.80} is not {MOMENT_FORMS}.")
    date, minutes, seconds, fraction, _, sign, hours_off, minutes_off = match.groups()
    if minutes is None and (sign or match[5]):
        raise ValueError(f"{text!a:.80} has a zone, but no time of the day.")
    try:
        moment = datetime.fromisoformat(f"{date}T{minutes or '00:00'}{seconds or ':00'}")
        offset = timedelta(hours=int(hours_off or 0), minutes=int(minutes_off or 0))
        zone = timezone(-offset if sign == "-" else offset)
    except ValueError as error:
        raise ValueError(f"{text!a:.80} is not a moment: {error}.") from None
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    micros += bool((fraction or "")[6:].strip("0"))  # Rounded up, as fractions of a ms are.
    return datetime_ms(moment.replace(tzinfo=zone), micros)


def datetime_ms(moment: datetime, more_us: int = 0) -> int:
    """Return the ms since 1970 of a datetime, and of some microseconds behind it.

    Raises ValueError: it has no time zone.
    """
    if moment.utcoffset() is None:
        raise ValueError(
            f"{moment!r} has no time zone, so it would be another moment on another machine. Give it one: "
            "moment.astimezone() for local time, moment.replace(tzinfo=UTC) for UTC."
        )
    since = moment - _EPOCH + timedelta(microseconds=more_us)
    moment_ms = min(-(-since // _MS), MOMENT_MAX_MS)
    return (
        moment_ms if moment_ms >= SECONDS.stop else 0
    )  # A number between them would be of another unit.


def rfc3339(time_ms: int) -> str:
    """Return a moment in UTC with milliseconds. A moment outside the calendar becomes its first or last one."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, 0), MOMENT_MAX_MS))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def rfc3339_or_none(time_ms: int) -> str | None:
    """Return a moment in UTC, or None if it lies beyond the calendar."""
    return rfc3339(time_ms) if 0 <= time_ms <= MOMENT_MAX_MS else None


def time_text(time_ms: int) -> str:
    """Return a moment in UTC; the digits alone if it lies beyond the calendar."""
    return rfc3339_or_none(time_ms) or str(time_ms)


def span_ms(text: str, *, bare: str | None = None) -> float:
    """Return the ms of a span's text. A number without a unit has the unit ``bare``; None: it is refused.

    Raises ValueError.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!a:.80} is not {_forms(bare)}.")
    unit = match[2] or bare
    if unit is None:
        raise ValueError(f"{text!a:.80} has no unit: give {SPAN_FORMS}.")
    spanned_ms = round(float(match[1]) * _UNITS_MS[unit], 6)
    if spanned_ms > SPAN_MAX_MS:
        raise ValueError(f"{text!a:.80} is too long: at most 10,000 years.")
    return spanned_ms


def span_s(text: str, *, bare: str | None = "s") -> float:
    """Return the seconds of a span's text. Raises ValueError, as ``span_ms`` does."""
    return span_ms(text, bare=bare) / 1000


def whole_s(text: str) -> int:
    """Return the whole seconds of a span's text; a number alone is seconds. Raises ValueError, also for less than 1."""
    spanned_ms = span_ms(text, bare="s")
    if not spanned_ms or spanned_ms % 1000:
        raise ValueError(f"{text!a:.80} is not a whole number of seconds, at least 1.")
    return int(spanned_ms // 1000)


def _forms(bare: str | None) -> str:
    units = {"s": "a number of seconds", "ms": "a number of ms"}
    return SPAN_FORMS if bare is None else f"{SPAN_FORMS}, nor {units[bare]}"

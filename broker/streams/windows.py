"""Windows of event time, and which of them a record belongs to. Pure.

Tumbling and sliding windows are half-open, ``[start, end)``, and begin at multiples of their slide since 1970.
A session holds records of one key with pauses shorter than ``gap`` between them. It ends a gap after its last record.
Times are in ms since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from typing_extensions import override

from broker.moments import span_ms

Duration = str | timedelta
"""A time span: ``"500ms"``, ``"10s"``, ``"5m"``, ``"2h"``, ``"1d"``, ``"1w"``, or a timedelta."""


def duration_ms(duration: Duration) -> int:
    """Return a time span in whole ms. Raises ValueError if it is none; the text shows valid ones."""
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    spanned_ms = span_ms(str(duration))
    if spanned_ms % 1:
        raise ValueError(f"{duration!r} is not a whole number of ms.")
    return int(spanned_ms)


class Window(NamedTuple):
    """The times ``[start_ms, end_ms)``."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of ``size_ms``; one begins every ``slide_ms``."""

    size_ms: int
    slide_ms: int

    def windows_of(self, time_ms: int) -> list[Window]:
        """Return the windows that hold a time, earliest first."""
        last = time_ms - time_ms % self.slide_ms
        starts = range(last, time_ms - self.size_ms, -self.slide_ms)
        return [Window(start, start + self.size_ms) for start in reversed(starts)]

    @override
    def __str__(self) -> str:
        """Return it as a person would write it."""
        if self.size_ms == self.slide_ms:
            return f"tumbling {self.size_ms} ms"
        return f"sliding {self.size_ms} ms every {self.slide_ms} ms"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Sessions that end after ``gap_ms`` without a record."""

    gap_ms: int

    def window_of(self, time_ms: int) -> Window:
        """Return the session of a record that has no neighbours."""
        return Window(time_ms, time_ms + self.gap_ms)

    @override
    def __str__(self) -> str:
        """Return it as a person would write it."""
        return f"sessions with gaps of {self.gap_ms} ms"


Windows = Sliding | SessionWindow


def tumbling(size: Duration) -> Sliding:
    """Return windows that follow each other without overlap. Raises ValueError unless ``size`` is positive."""
    return Sliding(_positive("size", size), _positive("size", size))


def sliding(size: Duration, slide: Duration) -> Sliding:
    """Return windows that overlap. Raises ValueError unless 0 < ``slide`` <= ``size``."""
    size_ms, slide_ms = _positive("size", size), _positive("slide", slide)
    if slide_ms > size_ms:
        raise ValueError(
            f"A slide of {slide} leaves out times between windows of {size}: make it no longer."
        )
    return Sliding(size_ms, slide_ms)


def session(gap: Duration) -> SessionWindow:
    """Return sessions. Raises ValueError unless ``gap`` is positive."""
    return SessionWindow(_positive("gap", gap))


def _positive(name: str, duration: Duration) -> int:
    ms = duration_ms(duration)
    if ms <= 0:
        raise ValueError(f"The {name} of a window must be at least 1ms, not {duration!r}.")
    return ms

"""Percentiles of any number of durations, in bounded memory.

Durations are counted in buckets. Below 256 us each microsecond has its own bucket. Above, each power of two is
divided into 128 buckets, so the width of a bucket is less than 1 % of its durations::

    0 ─ 1 us each ─ 256 ─ 2 us each ─ 512 ─ 4 us each ─ 1024 ─ …      up to 2^40 us, 12 days
"""

from __future__ import annotations

from typing import Final

_SUB_BITS: Final = 7
_SUB: Final = 1 << _SUB_BITS
US_MAX: Final = (1 << 40) - 1


def bucket_of(us: int) -> int:
    """Return the bucket of a duration."""
    shift = max(us.bit_length() - _SUB_BITS - 1, 0)
    return (shift << _SUB_BITS) + (us >> shift)


def last_of(bucket: int) -> int:
    """Return the greatest duration of a bucket."""
    shift = max((bucket >> _SUB_BITS) - 1, 0)
    return (((bucket - (shift << _SUB_BITS)) + 1) << shift) - 1


class Histogram:
    """A histogram of durations in us."""

    def __init__(self) -> None:
        """Make an empty histogram."""
        self.count = 0
        self.sum_us = 0
        self.max_us = 0
        self._counts = [0] * (bucket_of(US_MAX) + 1)

    def add(self, us: int, times: int = 1) -> None:
        """Count a duration; a negative one, which comes from clocks that differ, as zero."""
        us = min(max(us, 0), US_MAX)
        self._counts[bucket_of(us)] += times
        self.count += times
        self.sum_us += us * times
        self.max_us = max(self.max_us, us)

    def merge(self, other: Histogram) -> None:
        """Add all durations of another histogram."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, percent: float) -> int | None:
        """Return the duration that ``percent`` of all do not exceed; None if the histogram is empty.

        The result is at most 1 % too long.
        """
        if not self.count:
            return None
        wanted = max(self.count * percent / 100, 1)
        seen = 0
        for bucket, times in enumerate(self._counts):
            seen += times
            if seen >= wanted:
                return min(last_of(bucket), self.max_us)
        return self.max_us

    def summary_ms(self) -> dict[str, float] | None:
        """Return percentiles, maximum and mean in ms, as JSON; None if the histogram is empty."""
        if not self.count:
            return None
        percentiles = {
            f"p{percent:g}".replace(".", "_"): self.ms(percent) for percent in (50, 90, 99, 99.9)
        }
        return {
            **percentiles,
            "max": self.max_us / 1000,
            "mean": round(self.sum_us / self.count / 1000, 3),
        }

    def ms(self, percent: float) -> float:
        """Return a percentile in ms; 0 if the histogram is empty."""
        return (self.percentile_us(percent) or 0) / 1000

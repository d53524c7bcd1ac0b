"""The measure of a benchmark: counts since its start and since the last look, latencies, and stamps in payloads."""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Any, Final, NamedTuple

from broker.errors import BrokerError

US_MAX: Final = (1 << 40) - 1
_SUB_BITS: Final = 7


def bucket_end(us: int) -> int:
    """Return the greatest duration of the bucket of a duration.

    Below 256 us each microsecond has its own bucket. Above, each power of two is divided into 128 buckets, so the width
    of a bucket is less than 1 % of its durations.
    """
    shift = max(us.bit_length() - _SUB_BITS - 1, 0)
    return (((us >> shift) + 1) << shift) - 1


class Histogram:
    """Percentiles of any number of durations in us, in bounded memory: of each bucket the number of its durations."""

    def __init__(self) -> None:
        """Make an empty histogram."""
        self._counts: Counter[int] = Counter()
        self._sum_us = 0
        self._max_us = 0

    @property
    def count(self) -> int:
        """The number of durations."""
        return self._counts.total()

    def add(self, us: int, times: int = 1) -> None:
        """Count a duration; a negative one, which comes from clocks that differ, as zero."""
        us = min(max(us, 0), US_MAX)
        self._counts[bucket_end(us)] += times
        self._sum_us += us * times
        self._max_us = max(self._max_us, us)

    def merge(self, other: Histogram) -> None:
        """Add all durations of another histogram."""
        self._counts.update(other._counts)
        self._sum_us += other._sum_us
        self._max_us = max(self._max_us, other._max_us)

    def percentile_us(self, percent: float) -> int | None:
        """Return the duration that ``percent`` of all do not exceed, at most 1 % too long; None if there are none."""
        wanted = max(self.count * percent / 100, 1)
        seen = 0
        for end, times in sorted(self._counts.items()):
            seen += times
            if seen >= wanted:
                return min(end, self._max_us)
        return self._max_us if seen else None

    def summary_ms(self) -> dict[str, float] | None:
        """Return percentiles, maximum and mean in ms, as JSON; None if the histogram is empty."""
        if not self.count:
            return None
        percentiles = {
            f"p{percent:g}".replace(".", "_"): self.ms(percent) for percent in (50, 90, 99, 99.9)
        }
        mean = round(self._sum_us / self.count / 1000, 3)
        return {**percentiles, "max": self._max_us / 1000, "mean": mean}

    def ms(self, percent: float) -> float:
        """Return a percentile in ms; 0 if the histogram is empty."""
        return (self.percentile_us(percent) or 0) / 1000


class Interval(NamedTuple):
    """The counts between two looks."""

    seconds: float
    messages: int
    bytes: int
    latencies: Histogram

    @property
    def line(self) -> str:
        """Return the rates and latencies as one line."""
        rate, size = self.messages / self.seconds, self.bytes / self.seconds / 1e6
        text = f"{rate:>10,.0f} messages/s  {size:>8.2f} MB/s"
        if self.latencies.count:
            text += f"  p50 {self.latencies.ms(50):.2f} ms  p99 {self.latencies.ms(99):.2f} ms"
        return text


class Measure:
    """Counts of messages, bytes, latencies and errors."""

    def __init__(self, now_s: float) -> None:
        """Start at ``now_s`` of the monotonic clock."""
        self._began_s = self._looked_s = now_s
        self.messages = self.bytes = 0
        self._counts_at_look = (0, 0)
        self.latencies = Histogram()
        self._recent = Histogram()
        self.errors: Counter[str] = Counter()

    def add(self, messages: int, size: int, latency_us: int | None = None) -> None:
        """Count messages with ``size`` bytes in all, and their latency if it is known."""
        self.messages += messages
        self.bytes += size
        if latency_us is not None:
            self._recent.add(latency_us, messages)

    def failed(self, error: BrokerError) -> None:
        """Count an error."""
        self.errors[error.code] += 1

    def look(self, now_s: float) -> Interval:
        """Return the counts since the last look."""
        messages, size = self._counts_at_look
        interval = Interval(
            max(now_s - self._looked_s, 1e-9),
            self.messages - messages,
            self.bytes - size,
            self._recent,
        )
        self._counts_at_look, self._looked_s = (self.messages, self.bytes), now_s
        self.latencies.merge(self._recent)
        self._recent = Histogram()
        return interval

    def as_json(self, now_s: float) -> dict[str, Any]:
        """Return all counts as JSON."""
        self.look(now_s)
        seconds = max(now_s - self._began_s, 1e-9)
        return {
            "seconds": round(seconds, 3),
            "messages": self.messages,
            "bytes": self.bytes,
            "messages_per_s": round(self.messages / seconds, 1),
            "bytes_per_s": round(self.bytes / seconds, 1),
            "errors": dict(self.errors),
            "latency_ms": self.latencies.summary_ms(),
        }


# --- Stamps ----------------------------------------------------------------------------------------
#
# A payload has the time of its publish, so that the receiver can compute its latency.

_STAMP: Final = struct.Struct(">8sq")
_MARK: Final = b"brkbench"
BYTES_MIN: Final = _STAMP.size


def now_us() -> int:
    """Return us since 1970 by the machine's clock; publisher and receiver share it, or have clocks that agree."""
    return time.time_ns() // 1000


def stamped(size: int, us: int) -> bytes:
    """Return a payload of ``size`` bytes, at least BYTES_MIN, that contains the time ``us``."""
    return _STAMP.pack(_MARK, us).ljust(size, b".")


def moment_of(payload: bytes) -> int | None:
    """Return the time in a payload; None if it has none."""
    if len(payload) < BYTES_MIN:
        return None
    mark, us = _STAMP.unpack_from(payload)
    return int(us) if mark == _MARK else None

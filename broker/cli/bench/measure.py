"""The counts of a benchmark: since its start, and since the last look."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from broker.cli.bench.histogram import Histogram
from broker.errors import BrokerError


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

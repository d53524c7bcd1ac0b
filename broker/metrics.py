"""The metrics of a node, for ``/metrics``.

Names are ``broker_<noun>_<unit>[_total]``. Labels are node, kind and code, and a topic for the topics that the
configuration lists. Other topics get no label, because each distinct label takes memory as long as the node runs.

No method is called for each message: handlers and the writer call once for each request, batch or sync. A call adds
to a plain dictionary (less than 1 µs; the library's own counters take 2 µs each, most of it for locks). Only a read
of ``/metrics`` turns the counts into metrics. Levels (cache, queues, waiting polls) are not counted: their owner
registers a function, and each read calls it.

Each method is called from one thread only: ``synced`` from the thread that writes, all others from the event loop.
Only this module imports prometheus-client. Each node has its own registry, so that several nodes can run in one
process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

CONTENT_TYPE = CONTENT_TYPE_LATEST
OK = "ok"

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BLOCKED_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 30)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000, 100_000)

Level = Callable[[], float | Mapping[Any, float]]
"""Returns a value, or values by a label, which is text."""


class _Values:
    """Values by labels, as ``values`` returns them."""

    def __init__(
        self,
        make: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        doc: str,
        labels: Sequence[str],
        values: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._make = make
        self._family = f"broker_{name}", doc
        self._labels = ["node", *labels]
        self._values = values

    def collect(self, node: str) -> Metric:
        family = self._make(*self._family, labels=self._labels)
        for labels, value in self._values().items():
            family.add_metric([node, *labels], value)
        return family


class _Counter(_Values):
    """Sums by labels."""

    def __init__(self, name: str, doc: str, *labels: str) -> None:
        self.sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        super().__init__(CounterMetricFamily, name, doc, labels, self.sums.copy)

    def add(self, kind: str, number: int = 1) -> None:
        self.sums[kind,] += number


class _Histogram:
    """Counts by bucket, and their sum, by labels."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], *labels: str) -> None:
        self._family = f"broker_{name}", doc
        self._labels = ["node", *labels]
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self, node: str) -> Metric:
        family = HistogramMetricFamily(*self._family, labels=self._labels)
        bounds = [*map(str, self._bounds), "+Inf"]
        for labels, counts in self._counts.copy().items():
            buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([node, *labels], buckets, self._sums[labels])
        return family


class Metrics(Collector):
    """The metrics of one node."""

    def __init__(self, node: str, topics: Iterable[str] = (), *, process: bool = False) -> None:
        """Start at zero.

        Args:
            node: the label of this node.
            topics: the topics (``namespace/topic``) that get a label of their own.
            process: whether to show metrics of the process too (memory, files).
        """
        self._node = node
        self._topics = frozenset(topics)
        self._requests = _Counter("requests", "Requests answered.", "kind", "code")
        self._seconds = _Histogram("request_seconds", "Time to answer.", _SECONDS, "kind")
        self._messages = _Counter("messages", "Messages published, stored, polled.", "kind")
        self._bytes = _Counter(
            "message_bytes", "Bytes of payloads; for polls, with message ids.", "kind"
        )
        self._of_topic = _Counter("topic_messages", "Messages of listed topics.", "kind", "topic")
        self._batches = _Histogram("batch_messages", "Messages in one batch.", _COUNTS)
        self._joined = _Histogram("batch_requests", "Requests in one batch.", _COUNTS)
        self.synced = _Histogram("sync_seconds", "Time of one synced write.", _SECONDS)
        self.cache_reads = _Counter(
            "cache_reads", "Polls: hit if the cache had the messages.", "kind"
        )
        self.swept = _Counter("swept_rows", "Messages and marks that sweeps removed.", "kind")
        self._forwarded = _Counter("forwarded", "Requests forwarded to leaders.", "kind", "code")
        self._forward = _Histogram("forward_seconds", "Time of one forward.", _SECONDS, "kind")
        self._calls = _Counter("storage_calls", "Calls to the storage's gateways.", "kind", "code")
        self._call = _Histogram("storage_call_seconds", "Time of one call.", _SECONDS, "kind")
        self.unknown = _Counter("unknown_outcomes", "Answers with the outcome unknown.", "kind")
        self.quota_refused = _Counter(
            "quota_refused", "Requests refused because a quota is used up.", "kind"
        )
        self.events = _Counter("events", "Rare events in the life of a node.", "kind")
        self.loop_blocked = _Histogram(
            "loop_held_seconds", "How long the event loop was held at a time.", _BLOCKED_S
        )
        self._levels: dict[str, _Values] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        if process:
            ProcessCollector(registry=self._registry)
            GCCollector(registry=self._registry)

    def answered(self, kind: str, code: str, seconds: float) -> None:
        """Count a request. ``kind`` is the route's name, ``code`` OK or an error's code."""
        self._requests.sums[kind, code] += 1
        self._seconds.observe(seconds, kind)

    def forwarded(self, kind: str, code: str, seconds: float) -> None:
        """Count a request that was forwarded to other nodes, by its outcome."""
        self._forwarded.sums[kind, code] += 1
        self._forward.observe(seconds, kind)

    def called(self, kind: str, error: str | None, seconds: float) -> None:
        """Count a call to a gateway of the storage. ``error`` is the kind of failure; None is a success."""
        self._calls.sums[kind, error or OK] += 1
        self._call.observe(seconds, kind)

    def moved(self, kind: str, topic: str, messages: int, payload_bytes: int) -> None:
        """Count messages. ``kind`` is publish, store or poll; ``topic`` is ``namespace/topic``.

        For polls ``payload_bytes`` is the size of the blocks sent: payloads, ids, lengths.
        """
        label = (kind,)
        self._messages.sums[label] += messages
        self._bytes.sums[label] += payload_bytes
        if topic in self._topics:
            self._of_topic.sums[kind, topic] += messages

    def batched(self, requests: int, messages: int) -> None:
        """Count a batch that was written together."""
        self._joined.observe(requests)
        self._batches.observe(messages)

    def watch(self, name: str, doc: str, level: Level, *label: str) -> None:
        """Show ``level()`` as ``broker_<name>`` at each read of the metrics: one value, or values by a label.

        Values by a label are counters if the name ends with total.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._levels:
            raise ValueError(f"broker_{name} is shown already")

        def values() -> dict[tuple[str, ...], float]:
            found = level()
            if isinstance(found, Mapping):
                return {(kind,): value for kind, value in found.items()}
            return {(): found}

        make = CounterMetricFamily if label and name.endswith("_total") else GaugeMetricFamily
        self._levels[name] = _Values(make, name, doc, label, values)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format (CONTENT_TYPE)."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. The library calls this."""
        for figures in [*vars(self).values(), *self._levels.values()]:
            if isinstance(figures, (_Values, _Histogram)):
                yield figures.collect(self._node)

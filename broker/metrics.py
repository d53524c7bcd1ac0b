"""What a node counts, for ``/metrics``.

Names are ``broker_<noun>_<unit>[_total]``; labels are node, kind and code, and a topic for the topics
that the configuration lists, because every distinct label costs memory for as long as the node runs.
Nothing here is called per message: handlers and the writer tell once per request, batch or sync, and
telling is an addition to a plain dictionary (under 1 µs; the library's own counters take 2 µs each,
most of it for locks). Only when somebody reads ``/metrics`` does a figure become a metric. Levels
(cache, queues, waiting polls) are not told at all; whoever has one registers a function that is asked.

Each method is called from one thread only: ``synced`` from whichever writes, all others from the event
loop. prometheus-client is imported here and nowhere else. Each node has its own registry, so that
several nodes can live in one process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
_HELD = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 30)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000, 100_000)


class _Counter:
    """Sums by labels."""

    def __init__(self, name: str, doc: str, *labels: str) -> None:
        self._family = (f"broker_{name}", doc)
        self._labels = ["node", *labels]
        self.sums: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def collect(self, node: str) -> Metric:
        family = CounterMetricFamily(*self._family, labels=self._labels)
        for labels, total in self.sums.copy().items():
            family.add_metric([node, *labels], total)
        return family


class _Histogram:
    """Counts by bucket, and their sum, by labels."""

    def __init__(self, name: str, doc: str, bounds: Sequence[float], *labels: str) -> None:
        self._family = (f"broker_{name}", doc)
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
        for labels, counts in self._counts.copy().items():
            family.add_metric([node, *labels], self._cumulated(counts), self._sums[labels])
        return family

    def _cumulated(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


class Metrics(Collector):
    """The figures of one node."""

    def __init__(self, node: str, topics: Iterable[str] = (), *, process: bool = False) -> None:
        """Start at zero.

        Args:
            node: the label that tells nodes apart.
            topics: those (``namespace/topic``) that get a label of their own.
            process: whether the process's own figures (memory, files) are shown too.
        """
        self._node = node
        self._topics = frozenset(topics)
        self._requests = _Counter("requests", "Requests answered.", "kind", "code")
        self._seconds = _Histogram("request_seconds", "Time to answer.", _SECONDS, "kind")
        self._messages = _Counter("messages", "Messages published, stored, polled.", "kind")
        self._bytes = _Counter(
            "message_bytes", "Bytes of their payloads; of polls, with their ids.", "kind"
        )
        self._of_topic = _Counter("topic_messages", "Of the listed topics.", "kind", "topic")
        self._batches = _Histogram("batch_messages", "Messages in one batch.", _COUNTS)
        self._joined = _Histogram("batch_requests", "Requests in one batch.", _COUNTS)
        self._sync = _Histogram("sync_seconds", "Time of one synced write.", _SECONDS)
        self._cache = _Counter("cache_reads", "Polls by where they read: hit, miss.", "kind")
        self._swept = _Counter("swept_rows", "Messages and marks that sweeps removed.", "kind")
        self._forwarded = _Counter("forwarded", "Requests passed on to leaders.", "kind", "code")
        self._forward = _Histogram("forward_seconds", "Time to pass one on.", _SECONDS, "kind")
        self._calls = _Counter("storage_calls", "Calls to the storage's gateways.", "kind", "code")
        self._call = _Histogram("storage_call_seconds", "Time of one call.", _SECONDS, "kind")
        self._unknown = _Counter(
            "unknown_outcomes", "Answers that can't say what was done.", "kind"
        )
        self._events = _Counter("events", "Rare events in the life of a node.", "kind")
        self._held = _Histogram(
            "loop_held_seconds", "How long the event loop was held at a time.", _HELD
        )
        self._each: dict[str, tuple[str, str, Callable[[], Mapping[str, float]]]] = {}
        self._levels: dict[str, tuple[str, Callable[[], float]]] = {}
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
        """Count a request that was passed on to other nodes, by how it ended."""
        self._forwarded.sums[kind, code] += 1
        self._forward.observe(seconds, kind)

    def called(self, kind: str, error: str | None, seconds: float) -> None:
        """Count a call to a gateway of the storage; ``error`` says what went wrong, if anything did."""
        self._calls.sums[kind, error or OK] += 1
        self._call.observe(seconds, kind)

    def unknown(self, kind: str) -> None:
        """Count an answer with the outcome *unknown*."""
        self._unknown.sums[kind,] += 1

    def moved(self, kind: str, topic: str, messages: int, payload_bytes: int) -> None:
        """Count messages. ``kind`` is publish, store or poll; ``topic`` is ``namespace/topic``.

        ``payload_bytes`` of polls are those of the blocks that go out: payloads, ids, lengths.
        """
        label = (kind,)
        self._messages.sums[label] += messages
        self._bytes.sums[label] += payload_bytes
        if topic in self._topics:
            self._of_topic.sums[kind, topic] += messages

    def batched(self, requests: int, messages: int) -> None:
        """Count a batch that was written at once."""
        self._joined.observe(requests)
        self._batches.observe(messages)

    def synced(self, seconds: float) -> None:
        """Count a synced write."""
        self._sync.observe(seconds)

    def cache_read(self, *, hit: bool) -> None:
        """Count a poll by where it read."""
        self._cache.sums["hit" if hit else "miss",] += 1

    def swept(self, kind: str, rows: int) -> None:
        """Count what a sweep removed: expired messages, those of deleted topics, and marks."""
        self._swept.sums[kind,] += rows

    def happened(self, kind: str) -> None:
        """Count a rare event by its name."""
        self._events.sums[kind,] += 1

    def loop_held(self, seconds: float) -> None:
        """Count for how long the event loop was held before one tick of its monitor; mostly 0."""
        self._held.observe(seconds)

    def watch(self, name: str, doc: str, level: Callable[[], float]) -> None:
        """Show ``level()`` as ``broker_<name>`` whenever figures are read.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._levels:
            raise ValueError(f"broker_{name} is shown already")
        self._levels[name] = (doc, level)

    def watch_each(
        self, name: str, doc: str, label: str, values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Show ``values()``, by the label, as ``broker_<name>``: counts if the name ends with total.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._each:
            raise ValueError(f"broker_{name} is shown already")
        self._each[name] = (doc, label, values)

    def render(self) -> bytes:
        """Return all figures in Prometheus's text format (CONTENT_TYPE)."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the figures as metrics; called by the library."""
        for figures in vars(self).values():
            if isinstance(figures, (_Counter, _Histogram)):
                yield figures.collect(self._node)
        for name, (doc, level) in self._levels.items():
            family = GaugeMetricFamily(f"broker_{name}", doc, labels=["node"])
            family.add_metric([self._node], level())
            yield family
        for name, (doc, label, values) in self._each.items():
            make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            each = make(f"broker_{name}", doc, labels=["node", label])
            for kind, value in values().items():
                each.add_metric([self._node, kind], value)
            yield each

"""Collect the statistics of a topic: sizes, ends, rates. Estimates are marked as such."""

from __future__ import annotations

from typing import NamedTuple

from broker.clock import Clock
from broker.http.budget import BudgetKind, Usage
from broker.long_work import Pace
from broker.model import (
    LOG_KEY_MIN,
    LogKey,
    MessageId,
    Topic,
    TopicId,
    log_key_before,
)
from broker.storage.entry import Entry
from broker.storage.keys import LogId
from broker.storage.log_reader import LogReader
from broker.storage.reference import messages_of
from broker.topics.fetch import lives, oldest_live
from broker.topics.surroundings import Surroundings

RATE_WINDOW_S = 60.0
ENTRIES_MAX = 10_000
"""This code counts at most so many entries, or a page of bytes; beyond that it estimates."""
BYTES_AT_ONCE = 256 * 1024
"""The bytes of one read while counting."""
PAYLOAD_LOGS_MAX = 10_000
"""The most payload logs that are counted."""


class Rate:
    """Events per second over the last minute: a present window, and the window before, whose weight falls with time."""

    __slots__ = ("_began", "_clock", "_current", "_previous")

    def __init__(self, clock: Clock) -> None:
        """Begin without an event."""
        self._clock = clock
        self._began = clock.monotonic()
        self._previous = 0
        self._current = 0

    def add(self, count: int) -> None:
        """Count events that happened now."""
        self._roll()
        self._current += count

    def per_s(self) -> float:
        """Return events per second."""
        age = self._roll()
        faded = self._previous * (1 - age / RATE_WINDOW_S)
        return (faded + self._current) / RATE_WINDOW_S

    def _roll(self) -> float:
        age = self._clock.monotonic() - self._began
        if age >= RATE_WINDOW_S:
            self._previous = self._current if age < 2 * RATE_WINDOW_S else 0
            self._current = 0
            self._began += age - age % RATE_WINDOW_S
            age %= RATE_WINDOW_S
        return age


class Rates:
    """The rates at which messages are published to one generation of a topic and polled from it."""

    __slots__ = ("_polled", "_published", "generation")

    def __init__(self, clock: Clock, generation: int) -> None:
        """Begin without messages."""
        self.generation = generation
        self._published = Rate(clock)
        self._polled = Rate(clock)

    def published(self, count: int) -> None:
        """Count messages that were published."""
        self._published.add(count)

    def polled(self, count: int) -> None:
        """Count messages that were given to consumers."""
        self._polled.add(count)

    @property
    def published_per_s(self) -> float:
        """Return messages published per second."""
        return self._published.per_s()

    @property
    def polled_per_s(self) -> float:
        """Return messages polled per second."""
        return self._polled.per_s()


class TopicStats(NamedTuple):
    """The statistics of a topic; ``first`` and ``last`` are keys of the message log, as message ids.

    ``published`` is the exact number of all messages published to this generation. The other numbers are those of
    messages that have not expired; ``bytes`` are the bytes of payloads.
    """

    topic: TopicId
    generation: int
    published: int
    messages: int
    messages_exact: bool
    bytes: int
    bytes_exact: bool
    first: MessageId | None
    last: MessageId | None
    publish_per_s: float
    poll_per_s: float
    open_payload_logs: int
    ids_ahead_ms: int


async def topic_stats(
    around: Surroundings, topic: Topic, rates: Rates, ahead_ms: int, usage: Usage
) -> TopicStats:
    """Collect a topic's statistics.

    If the live messages fit into one page of storage, and have not too many entries, they are counted. Otherwise they
    are estimated from the totals that pages keep, as if all payloads were like the counted ones.
    """
    log = LogId(topic.id, topic.generation)
    now_ms = around.clock.now_ms()
    ends = await around.logs.ends(log)
    tail = ends.tail if ends is not None else None
    published = tail.total if tail is not None else 0
    bound = log_key_before(oldest_live(topic, now_ms))
    reader = around.logs.reader(log, bound)
    counts, pace = _LiveCounts(topic, now_ms), Pace()
    at_once = min(BYTES_AT_ONCE, around.settings.page_bytes_max)
    while (
        not reader.ended
        and counts.bytes < around.settings.page_bytes_max
        and counts.entries < ENTRIES_MAX
    ):
        await _add_next(reader, counts, at_once, usage, pace)
    whole = reader.ended
    messages, size, last = counts.messages, counts.bytes, counts.last
    if not whole and tail is not None:
        before = await around.logs.total_before(log, bound)
        messages = max(published - before, counts.messages)
        size = messages * counts.bytes // max(counts.messages, 1)
        last = await _last(around, topic, bound, now_ms)
    exact = whole and not counts.references
    return TopicStats(
        topic=topic.id,
        generation=topic.generation,
        published=published,
        messages=messages,
        messages_exact=whole,
        bytes=size,
        bytes_exact=exact,
        first=None if counts.first is None else counts.first + LOG_KEY_MIN,
        last=None if last is None else last + LOG_KEY_MIN,
        publish_per_s=rates.published_per_s,
        poll_per_s=rates.polled_per_s,
        open_payload_logs=await around.payload_logs.count_open(
            topic.id, topic.generation, PAYLOAD_LOGS_MAX
        ),
        ids_ahead_ms=ahead_ms,
    )


async def _add_next(
    reader: LogReader, counts: _LiveCounts, at_once: int, usage: Usage, pace: Pace
) -> None:
    """Read the next entries and count them. The entries are freed with this call."""
    found = await reader.next(at_once)
    read = sum(entry.content_bytes for entry in found)
    usage.take(BudgetKind.REPLY_BYTES, read)
    for entry in found:
        counts.add(entry)
        await pace.step()
    usage.give(BudgetKind.REPLY_BYTES, read)


class _LiveCounts:
    """Counts the live messages of entries that are added one after the other."""

    def __init__(self, topic: Topic, now_ms: int) -> None:
        self._topic = topic
        self._now_ms = now_ms
        self.messages = self.bytes = self.references = self.entries = 0
        self.first: LogKey | None = None
        self.last: LogKey | None = None

    def add(self, entry: Entry) -> None:
        first = entry.place_at(oldest_live(self._topic, self._now_ms, entry.lifetime_ms))
        if first >= entry.count:
            return
        self.entries += 1
        self.first = self.first or entry.id(first)
        self.last = entry.last
        if entry.is_reference:
            self.references += 1
            self.messages += messages_of(entry)
        else:
            self.messages += entry.count - first
            self.bytes += entry.payload_bytes(first)


async def _last(around: Surroundings, topic: Topic, after: LogKey, now_ms: int) -> LogKey | None:
    """Return the last live message."""
    reader = around.logs.reader(LogId(topic.id, topic.generation), after)
    while not reader.ended:
        for entry in await reader.before(16, around.settings.page_bytes_max):
            if not entry.is_stub and lives(topic, entry.last, entry.lifetime_ms, now_ms):
                return entry.last
    return None

"""What is known of a topic: sizes, ends, rates. Estimates say that they are."""

from __future__ import annotations

from typing import NamedTuple

from broker.clock import Clock
from broker.model import ROW_ID_MAX, ROW_ID_MIN, MessageId, RowId, Topic, TopicId, row_before
from broker.storage.control import State
from broker.storage.keys import LogId
from broker.topics.fetch import lives, oldest_live
from broker.topics.surroundings import Surroundings

RATE_WINDOW_S = 60.0


class Rate:
    """Events a second over the last minute, in two windows of which the older one fades."""

    __slots__ = ("_began", "_clock", "_current", "_previous")

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
        self._clock = clock
        self._began = clock.monotonic()
        self._previous = 0
        self._current = 0

    def add(self, count: int) -> None:
        """Count events that happened now."""
        self._roll()
        self._current += count

    def per_s(self) -> float:
        """Return events a second."""
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
    """How much is published to a topic and polled from it, in messages."""

    __slots__ = ("_polled", "_published")

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
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
        """Messages published a second."""
        return self._published.per_s()

    @property
    def polled_per_s(self) -> float:
        """Messages given out a second."""
        return self._polled.per_s()


class TopicStats(NamedTuple):
    """A topic in numbers; ``first`` and ``last`` are rows of the message log, as message ids.

    What has expired is none of them. ``bytes`` are those of payloads.
    """

    topic: TopicId
    generation: int
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
    around: Surroundings, topic: Topic, rates: Rates, ahead_ms: int
) -> TopicStats:
    """Collect a topic's numbers.

    A page of rows is counted; more than that is estimated, as if all payloads were like those of the page.
    So is what references refer to, for it is not looked at.
    """
    log = LogId(topic.id, topic.generation)
    now_ms = around.clock.now_ms()
    bound = row_before(oldest_live(now_ms, topic.ttl_ms))
    page_rows = around.settings.page_rows_max
    page = await around.store.scan(
        log, bound, ROW_ID_MAX, rows_max=page_rows, bytes_max=around.settings.page_bytes_max
    )
    rows = [row for row in page.rows if lives(row.id, row.lifetime_ms, now_ms, topic.ttl_ms)]
    whole = not page.more
    exact = whole and all(row.payload is not None for row in rows)
    estimate = await around.store.estimate(log)
    counted = sum(len(row.payload or b"") for row in rows)
    messages = len(rows) if whole else max(estimate.rows, len(rows))
    payload_logs = await around.store.payload_logs(topic.id, topic.generation)
    first = rows[0].id if rows else None
    last = rows[-1].id if rows else None
    if not whole:
        first = first or await _end(around, topic, page.seen, now_ms, reverse=False)
        last = await _end(around, topic, bound, now_ms, reverse=True)
    return TopicStats(
        topic.id,
        topic.generation,
        messages,
        exact,
        counted if whole or not rows else messages * counted // len(rows),
        exact,
        None if first is None else first + ROW_ID_MIN,
        None if last is None else last + ROW_ID_MIN,
        rates.published_per_s,
        rates.polled_per_s,
        sum(control.state is State.OPEN for _, control in payload_logs),
        ahead_ms,
    )


async def _end(
    around: Surroundings, topic: Topic, after: RowId, now_ms: int, *, reverse: bool
) -> RowId | None:
    """Return the first row behind ``after`` that lives; with ``reverse`` the last one."""
    log, through, rows_max = LogId(topic.id, topic.generation), ROW_ID_MAX, 1
    while True:
        page = await around.store.scan(
            log,
            after,
            through,
            rows_max=rows_max,
            bytes_max=around.settings.page_bytes_max,
            reverse=reverse,
        )
        for row in page.rows:
            if lives(row.id, row.lifetime_ms, now_ms, topic.ttl_ms):
                return row.id
        if not page.more:
            return None
        if reverse:
            through = row_before(page.seen)
        else:
            after = page.seen
        rows_max = around.settings.page_rows_max  # Lives of their own may have ended together.

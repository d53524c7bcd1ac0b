"""The messages that a command reads: the options for the start and the end of a span.

::

    --since PLACE   from this place on     --last N         the newest N
    --after ID      after this message     --until PLACE    stop before this place
    -n, --limit N   at most N of them, counted from the start
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from broker.cli.options import PlaceGiven, id_option, place_option
from broker.client import Browsed, SyncClient
from broker.model import Message, MessageId, TopicId
from broker.places import Place

Command = TypeVar("Command", bound=Callable[..., Any])


class Span(NamedTuple):
    """The values of the options; None for each option that is not given."""

    since: PlaceGiven | None = None
    after: MessageId | None = None
    until: PlaceGiven | None = None
    last: int | None = None

    def checked(self) -> Span:
        """Return this span. Raises click.UsageError if two options name the start."""
        given = {"--since": self.since, "--after": self.after, "--last": self.last}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise click.UsageError(f"Give {' or '.join(names)}, not both.")
        return self

    def ends_before(self, message: Message) -> bool:
        """Return whether a message is at or after the end of the span."""
        if self.until is None:
            return False
        if isinstance(self.until, int):
            return message.timestamp_ms >= self.until
        return message.id >= (self.until.id if isinstance(self.until, Place) else self.until)


class SpanStart(NamedTuple):
    """The place where a poll or a tail starts; ``inclusive`` if the message at this id is part of it."""

    place: PlaceGiven | None
    inclusive: bool


def span_options(command: Command) -> Command:
    """Add ``--since``, ``--after``, ``--last`` and ``--until``."""
    after = id_option("--after", help_text="Start after this message.")
    return since_option(after(last_option(until_option(command))))


def since_option(command: Command) -> Command:
    """Add ``--since``."""
    text = "Start here: an age (1h), a time, or a message id."
    return place_option("--since", help_text=text)(command)


def until_option(command: Command) -> Command:
    """Add ``--until``."""
    text = "Stop before this: an age (1h), a time, or a message id."
    return place_option("--until", help_text=text)(command)


def last_option(command: Command) -> Command:
    """Add ``--last``."""
    number = click.IntRange(min=1)
    return click.option("--last", type=number, metavar="N", help="Read the newest N messages.")(
        command
    )


def limit_option(command: Command) -> Command:
    """Add ``-n``, ``--limit``."""
    number = click.IntRange(min=1)
    text = "Read at most N messages."
    return click.option("-n", "--limit", type=number, metavar="N", help=text)(command)


def start(client: SyncClient, topic: TopicId, span: Span) -> SpanStart:
    """Return the place where a poll or a tail of a span starts. Raises BrokerError."""
    if span.after is not None:
        return SpanStart(span.after, inclusive=False)
    if span.last is not None:
        rows = newest(client, topic, span.last, span.until)
        return SpanStart(rows[0].id if rows else None, inclusive=True)
    return SpanStart(span.since, inclusive=True)


def newest(
    client: SyncClient, topic: TopicId, count: int, until: PlaceGiven | None
) -> list[Browsed]:
    """Return the newest messages before a place, oldest first, each with the beginning of its payload.

    References are left out: a reference stands for other messages. Raises BrokerError, also if ``count`` is above the
    broker's ``limits.browse_messages_max``.
    """
    found: list[Browsed] = []
    while len(found) < count:
        page = client.browse(topic, stop=until, limit=count, descending=True, full=False)
        found += [row for row in page.messages if row.kind != "reference"]
        if page.next is None:
            break
        until = Place.of(page.next)
    return found[:count][::-1]

"""The messages that a command reads, and the form in which it writes them: the options of both.

::

    --since PLACE   from this place on     --last N         the newest N
    --after ID      after this message     --until PLACE    stop before this place
    -n, --limit N   at most N of them, counted from the start

``--format`` is a layout, see ``line_layout``. A file or a pipe gets payloads, keys and headers byte for byte; a terminal
gets them escaped, see ``escapes``.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from broker.cli.command.options import Command, PlaceGiven, flag, id_option, place_option, told
from broker.cli.command.output import write_json
from broker.client import Browsed, SyncClient
from broker.escapes import escaped_bytes
from broker.model import Message, MessageId, TopicId
from broker.places import Place
from broker.transfer.jsonlines import message_json
from broker.transfer.line_layout import PLAIN, WITH_IDS, LineLayout, layout_of


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


since_option = place_option(
    "--since", help_text="Start here: an age (1h), a time, or a message id."
)
until_option = place_option(
    "--until", help_text="Stop before this: an age (1h), a time, or a message id."
)
last_option = click.option(
    "--last", type=click.IntRange(min=1), metavar="N", help="Read the newest N messages."
)
limit_option = click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Read at most N messages."
)
_after_option = id_option("--after", help_text="Start after this message.")


def span_options(command: Command) -> Command:
    """Add ``--since``, ``--after``, ``--last`` and ``--until``, the fields of a ``Span``."""
    return since_option(_after_option(last_option(until_option(command))))


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


# --- Layouts ---------------------------------------------------------------------------------------


def write_message(message: Message, layout: LineLayout | None) -> None:
    """Write one message in a layout; without one, as a JSON object on one line.

    A terminal gets the bytes of others escaped; a file or a pipe gets them as they are.
    """
    if layout is None:
        write_json(message_json(message))
        return
    line = layout.of_message(message, escaped_bytes if sys.stdout.isatty() else bytes)
    sys.stdout.buffer.write(line)


format_option = click.option(
    "-f",
    "--format",
    "layout",
    type=told(layout_of),
    metavar="LAYOUT",
    help="The layout of each message: '{time} {id} {payload}'; also {key}, {headers}, \\n, \\t.",
)
_ids_option = flag("--ids", "Write the id and time before each message.")


def layout_options(command: Command) -> Command:
    """Add ``--ids`` and ``-f``; ``chosen`` turns them into the layout for ``write_message``."""
    return _ids_option(format_option(command))


def chosen(layout: LineLayout | None, *, ids: bool, as_json: bool) -> LineLayout | None:
    """Return the layout to write in; None for JSON. Raises click.UsageError if two forms are given."""
    check_one_form(layout, ids=ids, json=as_json)
    if as_json:
        return None
    return layout or (WITH_IDS if ids else PLAIN)


def check_one_form(layout: LineLayout | None, **others: object) -> None:
    """Refuse a layout together with another form of output. Raises click.UsageError."""
    for name, value in others.items():
        if layout is not None and value:
            raise click.UsageError(f"Give --format or --{name}, not both.")

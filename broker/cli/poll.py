"""The commands ``broker poll``, ``broker browse`` and ``broker stats``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import click

from broker.cli import output
from broker.cli import span as spans
from broker.cli.line_layout import (
    LineLayout,
    check_one_form,
    chosen,
    format_option,
    layout_options,
    write_message,
)
from broker.cli.options import PlaceGiven, SpanType, connect, to_broker, topic_argument
from broker.cli.span import (
    Span,
    last_option,
    limit_option,
    since_option,
    span_options,
    until_option,
)
from broker.client import BrowsePage
from broker.model import Message, MessageId, TopicId


@click.command()
@topic_argument
@span_options
@limit_option
@click.option(
    "--wait",
    "wait_s",
    type=SpanType(0, 60),
    help="If there is no message, wait so many seconds for one.",
)
@layout_options
@to_broker
def poll(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    since: PlaceGiven | None,
    after: MessageId | None,
    until: PlaceGiven | None,
    last: int | None,
    limit: int | None,
    wait_s: float | None,
    layout: LineLayout | None,
    ids: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Poll once, as a consumer does, and write the messages.

    \b
    broker poll audit/logins -n 10
    broker poll audit/logins --last 5 -f '{time} {payload}'
    broker poll audit/logins --since 2026-01-31T12:00:00Z --until 1h --json
    """  # noqa: D301
    span = Span(since, after, until, last).checked()
    form = chosen(layout, ids=ids, as_json=as_json)
    with connect(url, deadline_s) as client:
        start = spans.start(client, topic, span)
        messages = client.poll(
            topic, start.place, inclusive=start.inclusive, limit=limit, wait_s=wait_s
        )
    for message in takewhile(lambda message: not span.ends_before(message), messages):
        write_message(message, form)


@click.command()
@topic_argument
@since_option
@until_option
@last_option
@limit_option
@click.option("--desc", "descending", is_flag=True, help="Show the newest message first.")
@click.option("--full", is_flag=True, help="Show whole payloads, not only their first KiB.")
@format_option
@to_broker
def browse(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    since: PlaceGiven | None,
    until: PlaceGiven | None,
    last: int | None,
    limit: int | None,
    descending: bool,
    full: bool,
    layout: LineLayout | None,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Look at messages, also at uncommitted and rolled-back ones, which consumers don't see.

    The command shows a page of up to 100 messages, or up to --limit, and the place where the next page begins.
    The broker's limits.browse_messages_max (10,000) bounds --limit and --last. With --format it writes whole payloads.

    \b
    broker browse audit/logins --last 10
    broker browse audit/logins --since 1h --json
    broker browse audit/logins --desc -f '{id} {payload}'
    """  # noqa: D301
    Span(since=since, last=last).checked()
    check_one_form(layout, json=as_json)
    backwards = descending or last is not None
    with connect(url, deadline_s) as client:
        page = client.browse(
            topic,
            start=since,
            stop=until,
            limit=_page(limit, last),
            descending=backwards,
            full=full or layout is not None,
        )
    if last is not None and not descending:
        page = BrowsePage(page.messages[::-1], page.next)
    _write_page(page, layout, as_json=as_json)
    if page.next is not None and not as_json:
        output.write_line(f"more: {'--until' if backwards else '--since'} {page.next}", err=True)


def _page(limit: int | None, last: int | None) -> int:
    """Return the number of messages on a page."""
    return min((number for number in (limit, last) if number is not None), default=100)


def _write_page(page: BrowsePage, layout: LineLayout | None, *, as_json: bool) -> None:
    if as_json:
        rows = [output.browsed_json(row) for row in page.messages]
        output.write_json({"messages": rows, "next": page.next})
    elif layout is not None:
        for row in page.messages:  # A reference has no payload.
            write_message(Message(row.id, row.payload or b"", row.key, row.headers), layout)
    else:
        heads: Sequence[str] = ("ID", "TIME", "BYTES", "KIND", "PAYLOAD")
        output.write_table(heads, map(output.browsed_line, page.messages))


@click.command()
@topic_argument
@to_broker
def stats(topic: TopicId, url: str, deadline_s: float, as_json: bool) -> None:
    """Show a topic's figures: messages, bytes, first and last message, rates.

    \b
    broker stats audit/logins
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        figures = client.stats(topic)
    if as_json:
        output.write_json(figures)
        return
    output.write_properties({name: _figure(value) for name, value in figures.items()})


def _figure(value: object) -> str:
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    if set(value) == {"value", "estimate"}:
        return f"{value['value']}" + (" (estimate)" if value["estimate"] else "")
    return ", ".join(f"{name} {part}" for name, part in value.items())

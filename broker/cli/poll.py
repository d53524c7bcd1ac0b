"""The commands ``broker poll`` and ``broker browse``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import click

from broker.cli import message_options as reading
from broker.cli import output
from broker.cli.broker_calls import BrokerCall, to_broker
from broker.cli.message_options import (
    LineLayout,
    Span,
    check_one_form,
    chosen,
    format_option,
    last_option,
    layout_options,
    limit_option,
    since_option,
    span_options,
    until_option,
    write_message,
)
from broker.cli.options import PlaceGiven, SpanType, topic_argument
from broker.client import BrowsePage
from broker.model import Message, TopicId


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
def poll(
    call: BrokerCall,
    *,
    topic: TopicId,
    limit: int | None,
    wait_s: float | None,
    layout: LineLayout | None,
    ids: bool,
    **options: Any,
) -> None:
    """Poll once, as a consumer does, and write the messages.

    \b
    broker poll audit/logins -n 10
    broker poll audit/logins --last 5 -f '{time} {payload}'
    broker poll audit/logins --since 2026-01-31T12:00:00Z --until 1h --json
    """
    span = Span(**options).checked()
    form = chosen(layout, ids=ids, as_json=call.as_json)
    with call.client() as client:
        start = reading.start(client, topic, span)
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
def browse(
    call: BrokerCall,
    *,
    topic: TopicId,
    since: PlaceGiven | None,
    until: PlaceGiven | None,
    last: int | None,
    limit: int | None,
    descending: bool,
    full: bool,
    layout: LineLayout | None,
) -> None:
    """Look at messages, also at uncommitted and rolled-back ones, which consumers don't see.

    The command shows a page of up to 100 messages, or up to --limit, and the place where the next page begins.
    The broker's limits.browse_messages_max (10,000) bounds --limit and --last. With --format it writes whole payloads.

    \b
    broker browse audit/logins --last 10
    broker browse audit/logins --since 1h --json
    broker browse audit/logins --desc -f '{id} {payload}'
    """
    Span(since=since, last=last).checked()
    check_one_form(layout, json=call.as_json)
    backwards = descending or last is not None
    with call.client() as client:
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
    _write_page(page, layout, as_json=call.as_json)
    if page.next is not None and not call.as_json:
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

"""The commands ``broker poll``, ``broker browse`` and ``broker tail``.

A tail writes each message or hands it to a program, and keeps a cursor file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click

from broker.cli.command import output
from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import PlaceGiven, SpanType, flag, topic_argument
from broker.cli.messages import message_options as reading
from broker.cli.messages.message_options import (
    Span,
    SpanStart,
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
from broker.client import BrowsePage, SyncClient, TailOptions
from broker.clock import SystemClock
from broker.errors import DoneInPart
from broker.model import Message, TopicId
from broker.transfer import cursor_file as files
from broker.transfer.jsonlines import browsed_json
from broker.transfer.line_layout import LineLayout

committed_option = flag(
    "--committed", "Write only committed messages: those of a transaction when it is committed."
)


@click.command()
@topic_argument
@span_options
@limit_option
@committed_option
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
    committed: bool,
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
            topic,
            start.place,
            inclusive=start.inclusive,
            limit=limit,
            committed=committed,
            wait_s=wait_s,
        )
    for message in takewhile(lambda message: not span.ends_before(message), messages):
        write_message(message, form)


@click.command()
@topic_argument
@since_option
@until_option
@last_option
@limit_option
@flag("--desc", "Show the newest message first.", "descending")
@flag("--full", "Show whole payloads, not only their first KiB.")
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
            limit=min(filter(None, (limit, last)), default=100),
            descending=backwards,
            full=full or layout is not None,
        )
    if last is not None and not descending:
        page = BrowsePage(page.messages[::-1], page.next)
    _write_page(page, layout, as_json=call.as_json)
    if page.next is not None and not call.as_json:
        output.write_line(f"more: {'--until' if backwards else '--since'} {page.next}", err=True)


def _write_page(page: BrowsePage, layout: LineLayout | None, *, as_json: bool) -> None:
    if as_json:
        rows = [browsed_json(row) for row in page.messages]
        output.write_json({"messages": rows, "next": page.next})
    elif layout is not None:
        for row in page.messages:  # A reference has no payload.
            write_message(Message(row.id, row.payload or b"", row.key, row.headers), layout)
    else:
        heads: Sequence[str] = ("ID", "TIME", "BYTES", "KIND", "PAYLOAD")
        output.write_table(heads, map(output.browsed_line, page.messages))


class _TailSink(NamedTuple):
    """The handler of a tail's messages."""

    topic: TopicId
    command: list[str] | None
    layout: LineLayout | None

    def take(self, message: Message) -> None:
        """Handle one message.

        Raises:
            DoneInPart: the command ended with an error.
            click.ClickException: the command can't be run.
            OSError: the reader of the output is gone.
        """
        if self.command is not None:
            self._run(self.command, message)
            return
        write_message(message, self.layout)
        sys.stdout.flush()  # A message that is only in the buffer is not handled yet.

    def _run(self, command: list[str], message: Message) -> None:
        known = {
            "BROKER_TOPIC": "/".join(self.topic),
            "BROKER_MESSAGE_ID": message.id.hex(),
            "BROKER_MESSAGE_TIMESTAMP_MS": str(message.timestamp_ms),
        }
        try:
            done = subprocess.run(  # noqa: S603 - The user asked to run this command.
                command, input=message.payload, env={**os.environ, **known}, check=False
            )
        except OSError as error:
            raise click.ClickException(f"{command[0]}: {error.strerror}") from error
        if done.returncode:
            raise DoneInPart(
                f"{command[0]} ended with {done.returncode} at message {message.id.hex()}; "
                f"to continue with this message: --since {message.id.hex()}"
            )


class _Bookmark(NamedTuple):
    """The cursor file of a tail: the log it belongs to, and the cursor found in it at the start."""

    file: Path
    log: files.CursorLog
    found: files.FileCursor | None

    def keep(self, message: Message) -> None:
        """Store that a message was handled. Raises OSError."""
        files.save_cursor(self.file, self.log, message.id)


def _bookmark(client: SyncClient, topic: TopicId, file: Path) -> _Bookmark:
    """Read a cursor file. Raises click.ClickException if it belongs to another topic or broker."""
    log = files.CursorLog("/".join(topic), client.topic(topic).generation, client.settings.urls)
    found = files.load_cursor(file)
    if found is not None:
        files.check_log(file, found.log, log)
    return _Bookmark(file, log, found)


def _command_words(
    context: click.Context, option: click.Parameter, command: str | None
) -> list[str] | None:
    """Return a command line's words; None without a command line. Raises click.BadParameter."""
    try:
        return shlex.split(command) if command else None
    except ValueError as error:
        raise click.BadParameter(f"{command!r}: {error}", context, option) from error


def _follows(follow: bool | None, until: PlaceGiven | None) -> bool:
    """Return whether a tail waits for new messages; it does not with ``--until``. Raises click.UsageError."""
    if until is None:
        return follow is not False
    if follow:
        raise click.UsageError("A tail with --until ends there: remove --follow.")
    if isinstance(until, int) and until > SystemClock().now_ms():
        raise click.UsageError("--until is in the future: remove it to follow the topic.")
    return False


@click.command()
@topic_argument
@span_options
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Wait for new messages (the default without --until).",
)
@limit_option
@click.option(
    "--exec", "command", metavar="CMD", callback=_command_words, help="Run CMD for each message."
)
@click.option(
    "--cursor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Store the id of the last handled message in this file, and continue after it next time.",
)
@committed_option
@layout_options
@to_broker
def tail(
    call: BrokerCall,
    *,
    topic: TopicId,
    follow: bool | None,
    limit: int | None,
    command: list[str] | None,
    cursor: Path | None,
    committed: bool,
    layout: LineLayout | None,
    ids: bool,
    **options: Any,
) -> None:
    """Write a topic's messages, from the oldest on, then new messages as they arrive.

    With --exec, CMD runs once per message, in order. It gets the payload on its standard input, the id in
    BROKER_MESSAGE_ID, the time in BROKER_MESSAGE_TIMESTAMP_MS and the topic in BROKER_TOPIC. If CMD fails, the
    tail ends. The message counts as not handled, so the next run with --cursor starts with it.

    If the cursor file exists, it overrides --since, --after and --last; these apply to the first run.

    \b
    broker tail audit/logins --since 1h
    broker tail audit/logins --last 10 -f '{time} {payload}'
    broker tail audit/logins --no-follow --json | jq .payload
    broker tail orders/placed --committed
    broker tail jobs/states --exec 'python react.py' --cursor states.cursor
    """
    span = Span(**options).checked()
    follows = _follows(follow, span.until)
    sink = _TailSink(topic, command, chosen(layout, ids=ids, as_json=call.as_json))
    with call.client() as client:
        mark = _bookmark(client, topic, cursor) if cursor is not None else None
        start = _start(client, topic, span, mark)
        tailing = TailOptions(
            follow=follows,
            give_up_after_s=None if follows else call.deadline_s,
            generation=None if mark is None else mark.log.generation,
        )
        for message in islice(
            _messages(client, topic, start, span, tailing, committed=committed), limit
        ):
            sink.take(message)
            if mark is not None:
                mark.keep(message)


def _start(client: SyncClient, topic: TopicId, span: Span, mark: _Bookmark | None) -> SpanStart:
    if mark is not None and mark.found is not None:
        return SpanStart(mark.found.after, inclusive=False)
    return reading.start(client, topic, span)


def _messages(
    client: SyncClient,
    topic: TopicId,
    start: SpanStart,
    span: Span,
    options: TailOptions,
    *,
    committed: bool,
) -> Iterator[Message]:
    # A tail that follows waits without limit for a broker that went away. So this poll checks first, within
    # the deadline, that a broker answers at this address.
    client.poll(topic, start.place, inclusive=start.inclusive, limit=1, committed=committed)
    messages = client.tail(
        topic, start.place, inclusive=start.inclusive, committed=committed, options=options
    )
    return takewhile(lambda message: not span.ends_before(message), messages)

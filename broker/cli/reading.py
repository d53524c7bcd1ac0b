"""``broker tail``, ``poll``, ``browse`` and ``stats``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click

from broker.cli import output
from broker.cli.options import connect, id_option, place_option, to_broker, topic_argument
from broker.client import TailOptions
from broker.model import Message, MessageId, TopicId, message_id_from_hex


class _Sink(NamedTuple):
    """What happens to each message of a tail."""

    topic: TopicId
    command: list[str] | None
    cursor: Path | None
    as_json: bool
    ids: bool

    def take(self, message: Message) -> None:
        """Handle one message, then remember it.

        Raises:
            click.ClickException: CMD fails.
            OSError: nobody reads what is written, or the cursor can't be kept.
        """
        if self.command is None:
            output.write_message(message, as_json=self.as_json, ids=self.ids)
            sys.stdout.flush()  # What was only buffered counts as not handled.
        else:
            self._run(self.command, message)
        if self.cursor is not None:
            _remember(self.cursor, message.id)

    def _run(self, command: list[str], message: Message) -> None:
        known = {
            "BROKER_TOPIC": f"{self.topic.namespace}/{self.topic.topic}",
            "BROKER_MESSAGE_ID": message.id.hex(),
            "BROKER_MESSAGE_TIMESTAMP_MS": str(message.timestamp_ms),
        }
        try:
            done = subprocess.run(  # noqa: S603 - The command is what the user asked to run.
                command, input=message.payload, env={**os.environ, **known}, check=False
            )
        except OSError as error:
            raise click.ClickException(f"{command[0]}: {error.strerror}") from error
        if done.returncode:
            raise click.ClickException(
                f"{command[0]} ended with {done.returncode} at message {message.id.hex()}; "
                f"it will be the next one with --since {message.id.hex()}"
            )


def _remember(cursor: Path, message: MessageId) -> None:
    """Write a cursor file so that it is never seen half written."""
    new = cursor.with_name(cursor.name + ".new")
    with new.open("w") as file:
        file.write(message.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(cursor)


def _remembered(cursor: Path | None) -> MessageId | None:
    if cursor is None or not cursor.exists():
        return None
    return message_id_from_hex(cursor.read_text().strip())


class _Start(NamedTuple):
    place: MessageId | int | None
    inclusive: bool


def _start(
    since: MessageId | int | None, after: MessageId | None, cursor: Path | None = None
) -> _Start:
    """Return where to start; a cursor file that exists comes first."""
    if since is not None and after is not None:
        raise click.UsageError("Give --since or --after, not both.")
    last = _remembered(cursor) or after
    return _Start(since, True) if last is None else _Start(last, False)


def _words(
    context: click.Context, option: click.Parameter, command: str | None
) -> list[str] | None:
    """Return the words of a command line, None without one. Raises click.BadParameter."""
    try:
        return shlex.split(command) if command else None
    except ValueError as error:
        raise click.BadParameter(f"{command!r}: {error}", context, option) from error


@click.command()
@topic_argument
@place_option("--since", help_text="Start here: 1h, a time, or a message id.")
@id_option("--after", help_text="Start after this message.")
@click.option("--follow/--no-follow", default=True, help="Wait for new messages (the default).")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option(
    "--exec", "command", metavar="CMD", callback=_words, help="Run this for each message."
)
@click.option(
    "--cursor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the last handled message in this file, and go on after it next time.",
)
@click.option("--ids", is_flag=True, help="Write each message's id and time before it.")
@to_broker
def tail(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    since: MessageId | int | None,
    after: MessageId | None,
    follow: bool,
    limit: int | None,
    command: list[str] | None,
    cursor: Path | None,
    ids: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Write a topic's messages, from the oldest on, then new ones as they come.

    With --exec, CMD runs once per message, in order: the payload on its standard input, the id in
    BROKER_MESSAGE_ID, the time in BROKER_MESSAGE_TIMESTAMP_MS, the topic in BROKER_TOPIC. If it fails,
    the tail ends, and the message counts as not handled: it is the next one of the next run.

    \b
    broker tail audit/logins --since 1h
    broker tail audit/logins --no-follow --json | jq .payload
    broker tail jobs/states --exec 'python react.py' --cursor states.cursor
    """  # noqa: D301
    start = _start(since, after, cursor)
    sink = _Sink(topic, command, cursor, as_json, ids)
    with connect(url, deadline_s) as client:
        # One that follows waits for a broker that went away for as long as it takes; that there is one
        # at this address is found out before.
        client.poll(topic, start.place, inclusive=start.inclusive, limit=1)
        options = TailOptions(follow=follow, give_up_after_s=None if follow else deadline_s)
        messages = client.tail(topic, start.place, inclusive=start.inclusive, options=options)
        for message in islice(messages, limit):
            sink.take(message)


@click.command()
@topic_argument
@place_option("--since", help_text="Start here: 1h, a time, or a message id.")
@id_option("--after", help_text="Start after this message.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many messages.")
@click.option("--wait", "wait_s", type=click.FloatRange(0, 60), help="Wait for a first message.")
@click.option("--ids", is_flag=True, help="Write each message's id and time before it.")
@to_broker
def poll(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    since: MessageId | int | None,
    after: MessageId | None,
    limit: int | None,
    wait_s: float | None,
    ids: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Poll once, as a consumer does, and write the messages.

    \b
    broker poll audit/logins --limit 10
    broker poll audit/logins --since 2026-01-31T12:00:00Z --json
    """  # noqa: D301
    start = _start(since, after)
    with connect(url, deadline_s) as client:
        messages = client.poll(
            topic, start.place, inclusive=start.inclusive, limit=limit, wait_s=wait_s
        )
    for message in messages:
        output.write_message(message, as_json=as_json, ids=ids)


@click.command()
@topic_argument
@place_option("--from", "start", help_text="First message: 1h, a time, or an id.")
@place_option("--to", "stop", help_text="Stop before this message or time.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="At most so many messages.",
)
@click.option("--desc", "descending", is_flag=True, help="Newest first.")
@click.option("--full", is_flag=True, help="Whole payloads, not only their first KiB.")
@to_broker
def browse(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    start: MessageId | int | None,
    stop: MessageId | int | None,
    limit: int,
    descending: bool,
    full: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Look at messages without consuming them, also at those that consumers may not see yet.

    \b
    broker browse audit/logins --desc --limit 10
    broker browse audit/logins --from 1h --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        page = client.browse(
            topic, start=start, stop=stop, limit=limit, descending=descending, full=full
        )
    following = None if page.next is None else page.next.hex()
    if as_json:
        rows = [output.browsed_json(row) for row in page.messages]
        output.write_json({"messages": rows, "next": following})
        return
    heads = ("ID", "TIME", "BYTES", "KIND", "PAYLOAD")
    output.write_table(heads, map(output.browsed_line, page.messages))
    if following:
        click.echo(f"more: {'--to' if descending else '--from'} {following}", err=True)


@click.command()
@topic_argument
@to_broker
def stats(topic: TopicId, url: str, deadline_s: float, as_json: bool) -> None:
    """Show a topic's figures: messages, bytes, first and last, rates.

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

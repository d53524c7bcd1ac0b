"""``broker publish``: publish arguments, a whole file as one message, or each line of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn
from typing_extensions import override

from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import name_and_value, topic_argument, ttl_option
from broker.cli.command.output import bar, write_json, write_line
from broker.client.acknowledgements import ids_of
from broker.model import TopicId
from broker.transfer.lines import MESSAGE_BYTES_MAX, PublishOrder, PublishTally, publish_lines

LONG_BYTES: Final = 1 << 20
"""The size from which a file gets a progress bar."""

STDIN: Final = "-"


def _write(tally: PublishTally, topic: TopicId, *, as_json: bool, ids: bool) -> None:
    """Write a tally; with ``ids``, for a single request, also the id of each message.

    Standard output has only the ids, one on each line, so that another program can read them. With ``--lines`` it has
    nothing, since a file may have millions of lines. Text for people goes to standard error. With ``--json`` standard
    output has one object with everything.
    """
    found = None
    if ids and tally.first is not None and tally.last is not None:
        found = ids_of(tally.first, tally.last, tally.messages)
    listed = None if found is None else [each.hex() for each in found]
    if as_json:
        known = {
            "topic": "/".join(topic),
            "published": tally.messages,
            "already_published": tally.already,
            "first_id": None if tally.first is None else tally.first.hex(),
            "last_id": None if tally.last is None else tally.last.hex(),
        }
        write_json(known if listed is None else {**known, "ids": listed})
        return
    for each in listed or ():
        write_line(each)
    if listed is None or tally.already:
        write_line(_sentence(tally, "/".join(topic)), err=True)


def _sentence(tally: PublishTally, topic: str) -> str:
    count = f"{tally.messages:,} message" + ("" if tally.messages == 1 else "s")
    text = f"published {count} to {topic}"
    if tally.already == tally.messages > 0:
        text = f"already published with the same idempotency key: {count} to {topic}"
    elif tally.already:
        text += f", {tally.already:,} of them already before, with the same idempotency key"
    if tally.first is None or tally.last is None:
        return text
    first, last = tally.first.hex(), tally.last.hex()
    return f"{text}: {first}" + ("" if first == last else f" … {last}")


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for ``-``. Raises click.FileError."""
    if name == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - Closed below.
    except OSError as error:
        raise click.FileError(name, hint=error.strerror) from error
    with file:
        yield file


def _file_payload(name: str) -> bytes:
    """Return the contents of a file, as one message. Raises click.FileError, OSError."""
    with _opened(name) as file:
        payload = file.read(MESSAGE_BYTES_MAX + 1)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise click.FileError(
            "standard input" if name == STDIN else name,
            hint=f"a message may have at most {MESSAGE_BYTES_MAX:,} bytes; this has more. "
            "To publish each line as a message, give --lines.",
        )
    return payload


def _size(file: IO[bytes]) -> int | None:
    """Return the size of a file; None for standard input."""
    return None if file is sys.stdin.buffer else Path(file.name).stat().st_size


def _progress(file: IO[bytes]) -> Progress:
    """Return a progress bar on standard error; it is visible only at a terminal, for a large file or a pipe."""
    size = _size(file)
    shown = sys.stderr.isatty() and (size is None or size >= LONG_BYTES)
    return bar(DownloadColumn(), TimeRemainingColumn(), shown=shown)


def _headers(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, bytes]:
    """Read the headers, each NAME=VALUE. Raises click.BadParameter."""
    headers = {}
    for pair in pairs:
        name, value = name_and_value(pair)
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice")
        headers[name] = os.fsencode(value)
    return headers


def _key(_: click.Context, __: click.Parameter, text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


class _PublishCommand(click.Command):
    """A command whose error about an unknown option explains ``--``, for messages that begin with ``-``."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"{error.format_message()} Write -- before a message that begins with -"
            raise click.UsageError(message, ctx) from error


def _one_source(
    messages: tuple[str, ...], lines: str | None, file: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Return the arguments to publish, and the file to publish as one message. Raises click.UsageError."""
    if sum((bool(messages), lines is not None, file is not None)) != 1:
        raise click.UsageError(
            "Give one of: messages; - for one message from standard input; --file FILE for one message from a "
            "file; --lines FILE for one message from each line."
        )
    if messages == (STDIN,):
        return (), STDIN
    if STDIN in messages:
        raise click.UsageError("- reads one message from standard input; give no other message.")
    return messages, file


@click.command(cls=_PublishCommand)
@topic_argument
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...|-")
@click.option("--file", metavar="FILE|-", help="Publish a file, byte for byte, as one message.")
@click.option(
    "--lines", metavar="FILE|-", help="Publish each line of a file, or of standard input."
)
@click.option("--key", callback=_key, help="Give each message this key.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="Give each message this header; may be repeated.",
)
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Publish once, even if this command is repeated with the same KEY.",
)
@ttl_option("The lifetime of the messages: seconds, or 30m, 12h, 1d, 2w.")
@to_broker
def publish(
    call: BrokerCall,
    *,
    topic: TopicId,
    messages: tuple[str, ...],
    file: str | None,
    lines: str | None,
    **options: Any,
) -> None:
    """Publish messages, a file, or each line of a file; return when they are stored and synced.

    Messages that are arguments go in one request: all are stored, or none. The command prints their ids, one on
    each line.

    With --lines the command sends requests of 1000 lines or 1 MiB, in order, and the rest at the end of the input.
    It prints the first and the last id on standard error. If a request fails, the error says which lines are
    published.

    \b
    broker publish audit/logins 'alice logged in' 'bob logged in'
    broker publish audit/logins --file report.pdf --key r-7 --header type=application/pdf
    curl -s https://example.org/feed | broker publish audit/feeds -
    broker publish audit/logins --lines /var/log/dpkg.log --idempotency-key dpkg-1
    journalctl -b | broker publish audit/journal --lines -
    """
    words, whole = _one_source(messages, lines, file)
    order, tally = PublishOrder(topic, **options), PublishTally()
    with ExitStack() as stack:
        if lines is None:
            # The bytes as they were typed: an argument need not be text.
            payloads = (
                [_file_payload(whole)]
                if whole is not None
                else [os.fsencode(each) for each in words]
            )
            client = stack.enter_context(call.client())
            tally.add(order.publish(client, payloads), len(payloads), order)
        else:
            source = stack.enter_context(_opened(lines))
            client = stack.enter_context(call.client())
            bar = stack.enter_context(_progress(source))
            task = bar.add_task("publishing", total=_size(source))
            publish_lines(client, order, source, tally, lambda done: bar.advance(task, done))
    _write(tally, topic, as_json=call.as_json, ids=lines is None)

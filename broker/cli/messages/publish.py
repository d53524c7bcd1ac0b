"""``broker publish``: publish arguments, a whole file as one message, or each line of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import click
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn
from typing_extensions import override

from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import name_and_value, topic_argument, ttl_option
from broker.cli.command.output import bar, write_json, write_line
from broker.client import Published, SyncClient
from broker.client.acknowledgements import ids_of
from broker.errors import BrokerError, DoneInPart, TaskFailed
from broker.model import MessageId, TopicId
from broker.small_files import bounded_lines, chunked

BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1 << 20
LONG_BYTES: Final = 1 << 20
"""The size from which a file gets a progress bar."""

MESSAGE_BYTES_MAX: Final = 1 << 28
"""The limit of one message that is read from a file; it is held in memory. A broker's default limit is a quarter."""

STDIN: Final = "-"


class _Order(NamedTuple):
    """The topic and options of a publish; ``key`` and ``headers`` apply to each message."""

    topic: TopicId
    idempotency_key: str | None
    ttl_s: int | None
    key: bytes | None
    headers: dict[str, bytes]

    @property
    def is_keyed(self) -> bool:
        """Return whether the user gave an idempotency key."""
        return self.idempotency_key is not None

    def publish(
        self, client: SyncClient, payloads: list[bytes], part: int | None = None
    ) -> Published:
        """Publish messages as one request; ``part`` is its number if there are several. Raises BrokerError."""
        idempotency_key = self.idempotency_key
        if idempotency_key is not None and part is not None:
            idempotency_key = f"{idempotency_key}-{part}"
        return client.publish(
            self.topic,
            payloads,
            key=self.key,
            headers=self.headers,
            ttl_s=self.ttl_s,
            idempotency_key=idempotency_key,
        )


class Tally:
    """The messages that the requests of one command published, in order, and the output about them.

    Standard output has only the ids, one on each line, so that another program can read them. With ``--lines`` it has
    nothing, since a file may have millions of lines. Text for people goes to standard error. With ``--json`` standard
    output has one object with everything.
    """

    def __init__(self, topic: TopicId) -> None:
        """Start an empty tally of a topic."""
        self._name = "/".join(topic)
        self._first: MessageId | None = None
        self._last: MessageId | None = None
        self.messages = 0
        self.already = 0
        """The number of them that were published before, with the same idempotency key."""

    def add(self, published: Published, messages: int, *, is_keyed: bool) -> None:
        """Count an acknowledged request; ``is_keyed`` if the user gave an idempotency key."""
        if not self.messages:
            self._first = published.first_id
        self._last = published.last_id
        self.messages += messages
        if is_keyed and published.replayed:
            self.already += messages

    def write(self, *, as_json: bool, ids: bool) -> None:
        """Write the tally; with ``ids``, for a single request, also the id of each message."""
        listed = self._ids() if ids else None
        if as_json:
            self._write_json(listed)
            return
        for identifier in listed or ():
            write_line(identifier.hex())
        if listed is None or self.already:
            write_line(self._sentence(), err=True)

    def _ids(self) -> list[MessageId] | None:
        if self._first is None or self._last is None:
            return None
        return ids_of(self._first, self._last, self.messages)

    def _write_json(self, listed: list[MessageId] | None) -> None:
        value: dict[str, object] = {
            "topic": self._name,
            "published": self.messages,
            "already_published": self.already,
            "first_id": None if self._first is None else self._first.hex(),
            "last_id": None if self._last is None else self._last.hex(),
        }
        if listed is not None:
            value["ids"] = [identifier.hex() for identifier in listed]
        write_json(value)

    def _sentence(self) -> str:
        count = f"{self.messages:,} message" + ("" if self.messages == 1 else "s")
        text = f"published {count} to {self._name}"
        if self.already == self.messages > 0:
            text = f"already published with the same idempotency key: {count} to {self._name}"
        elif self.already:
            text += f", {self.already:,} of them already before, with the same idempotency key"
        if self._first is None or self._last is None:
            return text
        first, last = self._first.hex(), self._last.hex()
        return f"{text}: {first}" + ("" if first == last else f" … {last}")


def batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut lines into requests. The same lines give the same requests, so their idempotency keys match."""
    messages = (line.removesuffix(b"\n") for line in lines)
    return chunked(messages, len, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX)


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


def _bounded(file: IO[bytes], tally: Tally) -> Iterator[bytes]:
    """Yield the lines of a file. Raises TaskFailed: a line is longer than any message."""
    try:
        yield from bounded_lines(file, MESSAGE_BYTES_MAX)
    except ValueError as error:
        done = tally.messages
        failure = DoneInPart if done else TaskFailed
        before = f"Lines 1 to {done:,} are published." if done else "No line was published."
        raise failure(f"{file.name}, {error}. {before}") from error


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


def _publish_lines(
    client: SyncClient, order: _Order, file: IO[bytes], bar: Progress, tally: Tally
) -> None:
    """Publish the lines of a file in order, count them, and show the progress."""
    task = bar.add_task("publishing", total=_size(file))
    for number, batch in enumerate(batches(_bounded(file, tally)), start=1):
        try:
            published = order.publish(client, batch, part=number)
        except BrokerError as error:
            done, last = tally.messages, tally.messages + len(batch)
            before = (
                f"Lines 1 to {done:,} are published" if done else "No line was published before"
            )
            error.add_note(
                f"{before}; the outcome of lines {done + 1:,} to {last:,} is: {error.outcome}."
            )
            raise
        tally.add(published, len(batch), is_keyed=order.is_keyed)
        bar.advance(task, sum(map(len, batch)) + len(batch))


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
    order, tally = _Order(topic, **options), Tally(topic)
    with ExitStack() as stack:
        if lines is None:
            # The bytes as they were typed: an argument need not be text.
            payloads = (
                [_file_payload(whole)]
                if whole is not None
                else [os.fsencode(each) for each in words]
            )
            client = stack.enter_context(call.client())
            tally.add(order.publish(client, payloads), len(payloads), is_keyed=order.is_keyed)
        else:
            source = stack.enter_context(_opened(lines))
            client = stack.enter_context(call.client())
            bar = stack.enter_context(_progress(source))
            _publish_lines(client, order, source, bar, tally)
    tally.write(as_json=call.as_json, ids=lines is None)

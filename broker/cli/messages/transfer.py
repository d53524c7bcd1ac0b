"""The commands ``broker export`` and ``broker import``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import Command, flag, place_now, told, topic_argument, usage
from broker.cli.command.output import bar, write_line
from broker.model import TopicId
from broker.places import Place
from broker.transfer.exports import Export, ExportPlan, TypedPlace
from broker.transfer.formats import FORMATS, format_of
from broker.transfer.imports import Import, ImportPlan, checked


def _place(_: click.Context, __: click.Parameter, text: str | None) -> TypedPlace:
    if text is None:
        return TypedPlace()
    place = told(place_now)(text)
    if isinstance(place, Place):
        return TypedPlace(text, place.id, place.generation)
    return TypedPlace(text, place)


def _place_option(name: str, help_text: str) -> Callable[[Command], Command]:
    return click.option(name, callback=_place, metavar="ID|TIME|AGE", help=help_text)


_FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    help="The file's format.  [default: by the file's ending]",
)


@click.command(name="export")
@topic_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_place_option(
    "--since", "Start here: an age (1h), a time, or a message id.  [default: the oldest message]"
)
@_place_option(
    "--until", "Stop before this: an age (1h), a time, or a message id.  [default: the end]"
)
@_FORMAT
@flag("--force", "Replace FILE if it exists.")
@to_broker
def export(
    call: BrokerCall,
    *,
    topic: TopicId,
    file: Path,
    since: TypedPlace,
    until: TypedPlace,
    format_name: str | None,
    force: bool,
) -> None:
    """Write a topic's messages to FILE: .jsonl, .avro or .parquet.

    The command exports the messages that the topic has at the start, or those between --since and --until. After
    an interruption, the same command continues the export. FILE appears when it is complete. Then
    FILE.manifest.json appears beside it, with the number of messages and a hash of them.

    \b
    broker export audit/logins logins.jsonl
    broker export audit/logins january.parquet --since 2026-01-01 --until 2026-02-01
    """
    wanted = ExportPlan(topic, file, usage(format_of, file, format_name), since, until)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise click.UsageError(f"{file} is no file: the export would take its place. Name a file.")
    if file.exists() and not (force or wanted.state.exists()):
        raise click.UsageError(
            f"{file} exists already. Name another file, or replace it with --force."
        )
    with call.client() as client:
        one = Export(client, wanted, _PROGRESS, deadline_s=call.deadline_s)
        if one.is_resumed:
            write_line(f"continuing the export to {file}", err=True)
        with _continued_by("The same command continues the export."):
            manifest = one.run()
    call.write({"file": str(file), **manifest}, _write_done)


@click.command(name="import")
@topic_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_FORMAT
@flag("--again", "Publish all messages, even if they were imported before.")
@to_broker
def import_(
    call: BrokerCall,
    *,
    topic: TopicId,
    file: Path,
    format_name: str | None,
    again: bool,
) -> None:
    """Publish the messages of FILE (.jsonl, .avro or .parquet), each once, in their order.

    The command first reads the whole file and compares it with FILE.manifest.json, if that exists. It reads each
    published part back and compares it. After an interruption, the same command continues the import.

    A topic gets the messages of the same file only once, within the topic's ttl plus 7 days. To publish them
    again, give --again.

    \b
    broker import audit/copy logins.jsonl
    broker import audit/copy january.parquet --json
    """
    if not file.is_file():
        raise click.UsageError(
            f"{file} is not a regular file. The import reads it twice: write it to a file first."
        )
    given = ImportPlan(topic, file, usage(format_of, file, format_name), again)
    ends = checked(given, _PROGRESS)
    with call.client() as client:
        one = Import(client, given, ends, _PROGRESS)
        if one.is_resumed:
            write_line(f"continuing the import of {file}", err=True)
        with _continued_by("The same command continues the import."):
            done = one.run()
    call.write({"file": str(file), **done}, _write_done)


class _Progress:
    """Counts messages on a bar of standard error, shown only at a terminal."""

    @contextmanager
    def counting(self, what: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Show a bar during a block."""
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn  # noqa: PLC0415 - Slow to import.

        with bar(MofNCompleteColumn(), TimeRemainingColumn(), shown=sys.stderr.isatty()) as shown:
            task = shown.add_task(what, total=total)
            yield lambda done: shown.advance(task, done)

    def say(self, text: str) -> None:
        """Write a line."""
        write_line(text, err=True)


_PROGRESS = _Progress()


@contextmanager
def _continued_by(advice: str) -> Iterator[None]:
    """Add advice to an error of this machine's files, such as of a full disk."""
    try:
        yield
    except OSError as error:
        error.add_note(advice)
        raise


def _write_done(done: dict[str, Any]) -> None:
    if "already" in done and not done["published"]:
        write_line(
            f"{done['topic']} has all {done['messages']:,} messages of {done['file']} already; nothing was published. To "
            "publish them again, give --again",
            err=True,
        )
        return
    words = "exported" if "already" not in done else "imported"
    write_line(f"{words} {done['messages']:,} messages, sha256 {done['sha256']}", err=True)

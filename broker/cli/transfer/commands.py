"""The command ``broker export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from broker.cli.options import connect, place_of, to_broker, topic_argument
from broker.cli.output import write_json
from broker.cli.transfer.exporting import Export, Wanted
from broker.cli.transfer.formats import FORMATS, format_of
from broker.clock import SystemClock
from broker.model import MessageId, TopicId


class Place(NamedTuple):
    """A place in a topic as it was typed, and what that means now."""

    text: str | None = None
    place: MessageId | int | None = None


def _place(_: click.Context, __: click.Parameter, text: str | None) -> Place:
    if text is None:
        return Place()
    try:
        return Place(text, place_of(text, SystemClock().now_ms()))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    help="Instead of the file's ending.",
)


@click.command(name="export")
@topic_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--since", callback=_place, metavar="ID|TIME|AGE", help="From here on: 1h, a time, or an id."
)
@click.option(
    "--until",
    callback=_place,
    metavar="ID|TIME|AGE",
    help="Up to here, without it. All by default.",
)
@_FORMAT
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@to_broker
def export(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    file: Path,
    since: Place,
    until: Place,
    format_name: str | None,
    force: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Write a topic's messages into FILE: .jsonl, .avro or .parquet.

    All that is there when it begins, or what lies between --since and --until. An export that was stopped
    goes on with the same command. FILE appears when it is whole, and beside it FILE.manifest.json with
    the count and the hash of its contents.

    \b
    broker export audit/logins logins.jsonl
    broker export audit/logins january.parquet --since 2026-01-01 --until 2026-02-01
    """  # noqa: D301
    wanted = Wanted(
        topic, file, format_of(file, format_name), since.text, until.text, since.place, until.place
    )
    if file.exists() and not (force or wanted.state.exists()):
        raise click.UsageError(
            f"{file} is there already. Name another file, or replace it with --force."
        )
    with connect(url, deadline_s) as client:
        one = Export(client, wanted, deadline_s=deadline_s)
        if one.is_resumed:
            click.echo(f"going on with {file} where it was stopped", err=True)
        manifest = one.run()
    _tell({"file": str(file), **manifest}, as_json=as_json)


def _tell(done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(done)
        return
    click.echo(f"exported {done['messages']:,} messages, sha256 {done['sha256']}", err=True)

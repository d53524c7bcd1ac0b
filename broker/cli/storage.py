"""``broker storage``: look after a data directory while no broker serves it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from broker import settings as resolution
from broker.cli.options import json_option
from broker.cli.output import write_json, write_properties

if TYPE_CHECKING:
    from broker.config import Config
    from broker.storage.leveldb_check import Report

Command = TypeVar("Command", bound=Callable[..., Any])


def _directory(command: Command) -> Command:
    return click.argument(
        "directory",
        metavar="[DIR]",
        default="data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
    )(command)


@click.group()
def storage() -> None:
    """Look after a data directory (``data`` if none is named) while no broker serves it.

    \b
    broker storage check data
    broker storage repair data mended
    broker storage sweep data
    """  # noqa: D301


@storage.command()
@_directory
@json_option
def check(directory: Path, as_json: bool) -> None:
    """Read everything in a store and say what is wrong; change nothing.

    Exits 0 if nothing is wrong, 1 if something is.

    \b
    broker storage check data
    """  # noqa: D301
    from broker.storage import leveldb_check  # noqa: PLC0415 - Only these commands need LevelDB.

    with _progress("checking") as progress:
        report = leveldb_check.check(directory, progress)
    _show(report, as_json=as_json)
    click.get_current_context().exit(0 if report.is_sound else 1)


@storage.command()
@_directory
@click.argument("copy", type=click.Path(path_type=Path))
@json_option
def repair(directory: Path, copy: Path, as_json: bool) -> None:
    """Make a mended copy of a damaged store; the original stays as it is.

    Read what it says before you serve the copy: what is lost is lost.

    \b
    broker storage repair data mended && broker serve --data-dir mended
    """  # noqa: D301
    from broker.storage import leveldb_check  # noqa: PLC0415

    with _progress("mending") as progress:
        try:
            report = leveldb_check.repair(directory, copy, progress)
        except FileExistsError as error:
            raise click.ClickException(f"{copy} exists; name a new directory") from error
    _show(report, as_json=as_json)
    click.get_current_context().exit(0 if report.is_sound else 1)


@storage.command()
@_directory
@json_option
def sweep(directory: Path, as_json: bool) -> None:
    """Remove now what has expired and what belongs to deleted topics.

    A broker that serves does so by itself, every ``sweep_interval_s`` seconds.

    \b
    broker storage sweep data
    """  # noqa: D301
    from broker import node  # noqa: PLC0415

    report = asdict(asyncio.run(node.sweep_store(_config(directory))))
    if as_json:
        write_json(report)
    else:
        write_properties({name.replace("_", " "): count for name, count in report.items()})


@storage.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def init(directory: Path, as_json: bool) -> None:
    """Make an empty store. ``broker serve`` does so too, where there is none.

    \b
    broker storage init /var/lib/broker
    """  # noqa: D301
    from broker import node  # noqa: PLC0415

    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} is not empty")
    asyncio.run(_init(node.open_store, directory))
    if as_json:
        write_json({"directory": str(directory)})


async def _init(open_store: Callable[[Config], Any], directory: Path) -> None:
    store = await open_store(_config(directory))
    await store.close()


def _config(directory: Path) -> Config:
    flags = {"storage.data_dir": str(directory)}
    return resolution.load(environment=os.environ, flags=flags).config


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, to people only."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        write_json({**asdict(report), "directory": str(report.directory)})
        return
    counted = ("message_logs", "payload_logs", "rows", "side_rows", "records", "ignorable", "bytes")
    write_properties({name.replace("_", " "): getattr(report, name) for name in counted})
    for line in report.mended:
        click.echo(f"mended: {line}")
    for line in report.problems:
        click.echo(f"wrong: {line}")
    click.echo(
        "nothing is wrong" if report.is_sound else f"{len(report.problems)} things are wrong"
    )

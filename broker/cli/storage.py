"""``broker storage``: make stores, and look after a data directory while no broker serves it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from broker import settings as resolution
from broker.cli.node import configured_by, resolved
from broker.cli.options import NotNow, json_option
from broker.cli.output import write_json, write_properties, write_table
from broker.errors import UnavailableError

if TYPE_CHECKING:
    from broker.config import Config
    from broker.storage.hbase.schema import Made
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
    """Make stores; look after a data directory ("data" if none is named) that no broker serves.

    \b
    broker storage init --hbase-gateways localhost:9090
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

    with _own_store(), _progress("checking") as progress:
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

    with _own_store(), _progress("mending") as progress:
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

    Exits 1 if not all topics could be swept.

    A broker that serves does so by itself, every sweep_interval_s seconds.

    \b
    broker storage sweep data
    """  # noqa: D301
    from broker import logs, node  # noqa: PLC0415

    config = _config(directory)
    with logs.writing(config.logs), _own_store():
        report = asdict(asyncio.run(node.sweep_store(config)))
    if as_json:
        write_json(report)
    else:
        known = {name: value for name, value in report.items() if value is not None}
        write_properties({name.replace("_", " "): value for name, value in known.items()})
    click.get_current_context().exit(1 if report["skipped"] or report["rested"] else 0)


@storage.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@configured_by({"hbase"})
@json_option
def init(directory: Path | None, file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Make an empty store: in a new folder, or in HBase the tables of a cluster.

    "broker serve" makes a missing folder by itself. The tables of a cluster it does not make: how
    they are divided can't be changed later. What is there already stays as it is; exits 1 if that is
    not as it should be.

    \b
    broker storage init /var/lib/broker
    broker storage init --hbase-gateways hbase1:9090,hbase2:9090
    broker storage init --config node1.toml
    """  # noqa: D301
    if directory is None:
        _init_tables(resolved(file, flags).config, as_json=as_json)
        return
    from broker import logs, node_alone  # noqa: PLC0415

    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} is not empty")
    config = _config(directory)
    with logs.writing(config.logs), _own_store():
        asyncio.run(_init(node_alone.open_store, config))
    if as_json:
        write_json({"directory": str(directory)})


def _init_tables(config: Config, *, as_json: bool) -> None:
    if not config.hbase.hbase_gateways:
        raise click.UsageError("Name a folder, or HBase's gateways: --hbase-gateways HOST:PORT")
    try:
        from broker.storage.hbase.store import init_hbase  # noqa: PLC0415 - Of clusters alone.
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"a cluster needs the package {error.name!r}: pip install 'tms-broker[cluster]'"
        ) from error
    try:
        made = asyncio.run(init_hbase(config.hbase))
    except UnavailableError as error:
        raise NotNow(error) from error
    problems = [f"{each.name}: {problem}" for each in made for problem in each.problems]
    if as_json:
        write_json([each._asdict() for each in made])
    else:
        write_table(("WHAT", "NAME", "DONE", "REGIONS"), map(_line, made))
    for line in problems:
        click.echo(f"wrong: {line}", err=True)
    click.get_current_context().exit(1 if problems else 0)


def _line(made: Made) -> Sequence[str]:
    done = "made" if made.made else "was there"
    return made.what, made.name, done, str(made.regions or "")


async def _init(open_store: Callable[[Config], Any], config: Config) -> None:
    store = await open_store(config)
    await store.close()


def _config(directory: Path) -> Config:
    flags = {"storage.data_dir": str(directory), "logs.log_level": "warning"}
    return resolution.load(environment=os.environ, flags=flags).config


@contextmanager
def _own_store() -> Iterator[None]:
    """Say of a store that can't be had that it is so, and not how to reach a broker."""
    try:
        yield
    except UnavailableError as error:
        raise NotNow(error) from error


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
    wrong = len(report.problems)
    click.echo(f"wrong in all: {wrong}" if wrong else "nothing is wrong")

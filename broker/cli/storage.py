"""``broker storage``: make stores, look into them, also while a broker serves them, and mend a data directory."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
from rich.progress import TextColumn

from broker.cli.broker_calls import json_option
from broker.cli.options import topic_argument
from broker.cli.output import bar, write_json, write_line, write_properties, write_table
from broker.cli.problems import NotNow
from broker.cli.serve import add_damage_advice, cannot_open, configured_by, repair_advice, resolved
from broker.config import sources
from broker.errors import StorageCorrupt, UnavailableError, install_command

if TYPE_CHECKING:
    from broker.config.sections import Config
    from broker.model import TopicId
    from broker.storage.hbase.schema import Made
    from broker.storage.log import Logs
    from broker.storage.report import CheckReport, Tell
    from broker.storage.shown_log import ShownLog

_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_directory = click.argument("directory", metavar="[DIR]", default="data", type=_FOLDER)


@click.group()
def storage() -> None:
    """Make stores; verify, show, repair and sweep them.

    "verify" and "show" read a data directory ("data" if none is named) or a cluster's store, also while a
    broker serves it. "repair" and "sweep" need a data directory that no broker serves.

    \b
    broker storage init --hbase-gateways localhost:9090
    broker storage verify data
    broker storage verify --hbase-gateways localhost:9090
    broker storage show audit/logins --entries 20
    broker storage repair data mended
    broker storage sweep data
    """


@storage.command()
@click.argument("directory", metavar="[DIR]", required=False, type=_FOLDER)
@configured_by({"hbase"})
@json_option
def verify(directory: Path | None, file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Read a whole store and report every problem; change nothing.

    The store is a data directory, or a cluster's store in HBase; a broker may serve it meanwhile. The command
    follows the chains of pages in both directions. It checks checksums, counts, marks, references and
    payload logs.

    Exits 0 if it finds no problem, 1 if it finds one.

    \b
    broker storage verify data
    broker storage verify --hbase-gateways hbase1:9090,hbase2:9090
    broker storage verify --config node1.toml --json
    """
    config = resolved(file, flags).config
    _check_one_store(directory, flags)
    on_disk = directory is not None or not config.hbase.hbase_gateways
    read = directory or config.storage.data_dir
    with _store_errors(read, "verify"), _progress("verifying") as tell:
        report = asyncio.run(_verified(directory, config, tell))
    advice = repair_advice(read) if on_disk and not report.is_sound else ""
    _show(report, advice, as_json=as_json)


async def _verified(directory: Path | None, config: Config, tell: Tell) -> CheckReport:
    from broker.storage.check import verify as verify_logs  # noqa: PLC0415 - Slow to import.

    window_ms = int(config.topics.idempotency_window_s * 1000)
    if directory is not None or not config.hbase.hbase_gateways:
        from broker.storage.leveldb.directory_repair import verify_directory  # noqa: PLC0415

        directory = directory or config.storage.data_dir
        return await verify_directory(directory, tell, window_ms=window_ms)
    async with _opened(None, config) as logs:
        return await verify_logs(logs, tell, window_ms=window_ms)


@asynccontextmanager
async def _opened(directory: Path | None, config: Config) -> AsyncIterator[Logs]:
    """Yield the logs of a data directory or of a cluster, to read them; a broker may serve them meanwhile."""
    from broker.clock import SystemClock  # noqa: PLC0415
    from broker.storage.log import Logs  # noqa: PLC0415

    if directory is not None or not config.hbase.hbase_gateways:
        from broker.storage.leveldb.directory_repair import opened_copy  # noqa: PLC0415

        async with opened_copy(directory or config.storage.data_dir) as table:
            yield Logs(table, SystemClock())
        return
    try:
        from broker.storage.hbase.store import open_hbase  # noqa: PLC0415 - Only clusters need it.
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    opened = await open_hbase(config.hbase, SystemClock())
    try:
        yield Logs(opened, SystemClock())
    finally:
        await opened.close()


@storage.command()
@topic_argument
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    help="A data directory.  [default: storage.data_dir of the configuration]",
)
@click.option(
    "--pages",
    "pages_max",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Show at most so many of the last pages.",
)
@click.option(
    "--entries",
    "entries_max",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Show at most so many of the last entries in them.",
)
@click.option(
    "--payload-log",
    "number",
    type=int,
    help="Show this payload log of the topic instead of its message log.",
)
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    help="The generation of the topic or payload log.  [default: the last one]",
)
@click.option(
    "--snapshot",
    "snapshot_file",
    type=click.File("rb"),
    help="Mark the entries of invalid transactions. The file has a snapshot (JSON, or the bytes of a "
    "TTransaction), or a JSON list of write pointers.",
)
@configured_by({"hbase"})
@json_option
def show(
    topic: TopicId,
    directory: Path | None,
    pages_max: int,
    entries_max: int,
    number: int | None,
    generation: int | None,
    snapshot_file: BinaryIO | None,
    file: Path | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Print a topic as it is stored: its root, the heads of its pages, and entries, all decoded.

    \b
    broker storage show audit/logins
    broker storage show audit/logins --dir data --entries 100 --json
    broker storage show audit/logins --hbase-gateways hbase1:9090 --payload-log 1700000000000000
    curl -s localhost:8080/v1/transactions/snapshot | broker storage show audit/logins --snapshot -
    """
    from broker.cli import storage_text  # noqa: PLC0415 - Slow to import.
    from broker.storage.keys import LogId  # noqa: PLC0415
    from broker.storage.shown_log import shown  # noqa: PLC0415

    config = resolved(file, flags).config
    invalid = [] if snapshot_file is None else storage_text.invalid_pointers(snapshot_file.read())

    async def looked() -> ShownLog:
        async with _opened(directory, config) as logs:
            known = generation or 0
            if number is not None and not known:
                root = await logs.root(LogId(topic, 0))
                known = 0 if root is None else root.generation
            log = LogId(topic, known, number)
            return await shown(logs.resolver, log, pages_max=pages_max, entries_max=entries_max)

    _check_one_store(directory, flags)
    with _store_errors(directory or config.storage.data_dir, "show"):
        found = asyncio.run(looked())
    if found.root is None and not found.pages:
        what = f"topic {topic}" if number is None else f"payload log {number} of topic {topic}"
        raise click.ClickException(f"the store has no data of {what}")
    if as_json:
        write_json(storage_text.shown_json(found, invalid))
    else:
        storage_text.write_shown(found, invalid)


@storage.command()
@_directory
@click.argument("copy", type=click.Path(path_type=Path))
@json_option
def repair(directory: Path, copy: Path, as_json: bool) -> None:
    """Make a repaired copy of a damaged data directory; the original stays as it is.

    LevelDB keeps all data that it can read. The report lists the ids of messages that are gone, and the problems
    that are left. Read it before you serve the copy. Exits 0 if the copy has no problem, 1 if it has one.

    \b
    broker storage repair data mended && broker serve --data-dir mended
    """
    from broker.storage.leveldb import directory_repair  # noqa: PLC0415 - Only these commands need LevelDB.

    with _store_errors(copy, "write"), _progress("mending") as tell:
        try:
            report = asyncio.run(directory_repair.repair(directory, copy, tell))
        except FileExistsError as error:
            raise click.ClickException(f"{copy} exists; name a new directory") from error
    _show(report, f"Serve the copy with: broker serve --data-dir {copy}", as_json=as_json)


@storage.command()
@_directory
@json_option
def sweep(directory: Path, as_json: bool) -> None:
    """Remove expired messages and the messages of deleted topics now.

    A running broker does this by itself, every sweep_interval_s seconds.

    Exits 1 if not all topics could be swept.

    \b
    broker storage sweep data
    """
    from broker import logs  # noqa: PLC0415
    from broker.node import node  # noqa: PLC0415

    config = _config(directory)
    with logs.writing(config.logs), _store_errors(directory, "sweep"):
        report = asdict(asyncio.run(node.sweep_store(config)))
    if as_json:
        write_json(report)
    else:
        known = {name: value for name, value in report.items() if value is not None}
        write_properties({name.replace("_", " "): value for name, value in known.items()})
    click.get_current_context().exit(1 if report["skipped"] or report["ended_early"] else 0)


@storage.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@configured_by({"hbase"})
@json_option
def init(directory: Path | None, file: Path | None, as_json: bool, **flags: str | None) -> None:
    """Make an empty store: a data directory, or the tables of a cluster in HBase.

    "broker serve" makes a missing data directory by itself. It does not make the tables of a cluster, because
    their division into regions can't be changed later. Existing tables stay as they are; the command exits 1
    if one of them is not as it should be.

    \b
    broker storage init /var/lib/broker
    broker storage init --hbase-gateways hbase1:9090,hbase2:9090
    broker storage init --config node1.toml
    """
    if directory is None:
        _init_tables(resolved(file, flags).config, as_json=as_json)
        return
    from broker import logs  # noqa: PLC0415
    from broker.node import servers  # noqa: PLC0415

    config = _config(directory)
    with logs.writing(config.logs), _store_errors(directory, "make"):
        if directory.exists() and any(directory.iterdir()):
            raise click.ClickException(f"{directory} is not empty")
        asyncio.run(_init(servers.open_store, config))
    if as_json:
        write_json({"directory": str(directory)})


def _init_tables(config: Config, *, as_json: bool) -> None:
    if not config.hbase.hbase_gateways:
        raise click.UsageError("Name a folder, or HBase's gateways: --hbase-gateways HOST:PORT")
    try:
        from broker.storage.hbase.store import init_hbase  # noqa: PLC0415 - Only clusters need it.
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
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
        write_line(f"problem: {line}", err=True)
    click.get_current_context().exit(1 if problems else 0)


def _line(made: Made) -> Sequence[str]:
    done = "made" if made.made else "was there"
    return made.what, made.name, done, str(made.regions or "")


async def _init(open_store: Callable[[Config], Any], config: Config) -> None:
    store = await open_store(config)
    await store.close()


def _config(directory: Path) -> Config:
    flags = {"storage.data_dir": str(directory), "logs.log_level": "warning"}
    return sources.load(environment=os.environ, flags=flags).config


@contextmanager
def _store_errors(directory: Path, what: str) -> Iterator[None]:
    """Report a missing, a damaged and an unavailable store, without the advice on how to reach a broker."""
    try:
        yield
    except StorageCorrupt as error:
        add_damage_advice(error, directory)
        raise
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(cannot_open(error, directory, what)) from error
    except UnavailableError as error:
        raise NotNow(error) from error


@contextmanager
def _progress(what: str) -> Iterator[Tell]:
    """Show a progress bar on standard error if it is a terminal: topics and megabytes read."""
    counted = TextColumn(
        "{task.completed:.0f} of {task.total:.0f} topics, {task.fields[megabytes]} MB"
    )
    with bar(counted, shown=sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=0, megabytes=0)
        yield lambda seen: progress.update(
            task, completed=seen.topics, total=seen.topics_all, megabytes=seen.bytes >> 20
        )


def _check_one_store(directory: Path | None, flags: Mapping[str, str | None]) -> None:
    if directory is not None and any(flags.values()):
        raise click.UsageError("Name a data directory, or the gateways of HBase, not both.")


def _show(report: CheckReport, advice: str, *, as_json: bool) -> None:
    """Write a report, and exit 0 if it is sound, else 1. People also get the advice, if there is one."""
    from broker.cli import storage_text  # noqa: PLC0415 - Slow to import.

    if as_json:
        write_json(asdict(report))
    else:
        storage_text.write_report(report)
        if advice:
            write_line(advice, err=True)
    click.get_current_context().exit(0 if report.is_sound else 1)


def _not_installed(error: ModuleNotFoundError) -> click.ClickException:
    return click.ClickException(
        f"a cluster needs the package {error.name!r}: {install_command('cluster')}"
    )

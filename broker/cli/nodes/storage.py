"""``broker storage``: make stores, look into them, also while a broker serves them, and mend a data directory."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
from rich.progress import TextColumn

from broker.cli.command.broker_calls import json_option, write_answer
from broker.cli.command.options import option, topic_argument
from broker.cli.command.output import bar, table, write_json, write_line, write_spaced
from broker.cli.command.problems import NotNow
from broker.cli.nodes.serve import configured_by, resolved
from broker.config import sources
from broker.errors import StorageCorrupt, UnavailableError, install_command
from broker.http.certificates import BadCertificates
from broker.node.tls_files import Certificates

if TYPE_CHECKING:
    from broker.config.sections import Config
    from broker.model import TopicId
    from broker.storage.report import CheckReport, Tell

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
    from broker.node import start_problems, stored  # noqa: PLC0415 - Slow to import.

    store = stored.Store.of(resolved(file, flags).config, directory)
    _check_one_store(directory, flags)
    with _store_errors(store.config.storage.data_dir, "verify"), _progress("verifying") as tell:
        report = asyncio.run(store.verify(tell))
    is_bad = store.is_directory and not report.is_sound
    advice = start_problems.repair_advice(store.config.storage.data_dir) if is_bad else ""
    _show(report, advice, as_json=as_json)


@storage.command()
@topic_argument
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    help="A data directory.  [default: storage.data_dir of the configuration]",
)
@option(
    "--pages", click.IntRange(min=1), 20, "Show at most so many of the last pages.", "pages_max"
)
@option(
    "--entries",
    click.IntRange(min=0),
    10,
    "Show at most so many of the last entries in them.",
    "entries_max",
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
    from broker.cli.nodes import storage_text  # noqa: PLC0415 - Slow to import.
    from broker.node import stored  # noqa: PLC0415 - Slow to import.
    from broker.storage.shown_log import json_of  # noqa: PLC0415

    store = stored.Store.of(resolved(file, flags).config, directory)
    invalid = [] if snapshot_file is None else storage_text.invalid_pointers(snapshot_file.read())
    _check_one_store(directory, flags)
    with _store_errors(store.config.storage.data_dir, "show"):
        found = asyncio.run(
            store.show(
                topic,
                number=number,
                generation=generation or 0,
                pages_max=pages_max,
                entries_max=entries_max,
            )
        )
    if found.root is None and not found.pages:
        what = f"topic {topic}" if number is None else f"payload log {number} of topic {topic}"
        raise click.ClickException(f"the store has no data of {what}")
    if as_json:
        write_json(json_of(found, invalid))
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
    write_answer(report, write_spaced, as_json=as_json)
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
    from broker.node.stored import Store  # noqa: PLC0415

    config = _config(directory)
    with logs.writing(config.logs), _store_errors(directory, "make"):
        if directory.exists() and any(directory.iterdir()):
            raise click.ClickException(f"{directory} is not empty")
        asyncio.run(Store.of(config, directory).make())
    if as_json:
        write_json({"directory": str(directory)})


def _init_tables(config: Config, *, as_json: bool) -> None:
    if not config.hbase.hbase_gateways:
        raise click.UsageError("Name a folder, or HBase's gateways: --hbase-gateways HOST:PORT")
    with _store_errors(Path(), "make"):
        from broker.storage.hbase.store import init_hbase  # noqa: PLC0415 - Only clusters need it.

        certificates = Certificates(config.tls)
        made = asyncio.run(init_hbase(config.hbase, lambda: certificates.hbase))
    problems = [f"{each.name}: {problem}" for each in made for problem in each.problems]
    write_answer([each._asdict() for each in made], lambda _: _MADE(made), as_json=as_json)
    for line in problems:
        write_line(f"problem: {line}", err=True)
    click.get_current_context().exit(1 if problems else 0)


_MADE = table(
    *("WHAT", "NAME", "DONE", "REGIONS"),
    fields={
        "DONE": lambda each: "made" if each.made else "was there",
        "REGIONS": lambda each: each.regions or None,
    },
)


def _config(directory: Path) -> Config:
    flags = {"storage.data_dir": str(directory), "logs.log_level": "warning"}
    return sources.load(environment=os.environ, flags=flags).config


@contextmanager
def _store_errors(directory: Path, what: str) -> Iterator[None]:
    """Report a missing, a damaged and an unavailable store, without the advice on how to reach a broker."""
    from broker.node import start_problems  # noqa: PLC0415 - Slow to import.

    try:
        yield
    except StorageCorrupt as error:
        start_problems.add_damage_advice(error, directory)
        raise
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(start_problems.cannot_open(error, directory, what)) from error
    except UnavailableError as error:
        raise NotNow(error) from error
    except BadCertificates as error:
        raise click.ClickException(str(error)) from error
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"a cluster needs the package {error.name!r}: {install_command('cluster')}"
        ) from error


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
    from broker.cli.nodes import storage_text  # noqa: PLC0415 - Slow to import.

    if as_json:
        write_json(asdict(report))
    else:
        storage_text.write_report(report)
        if advice:
            write_line(advice, err=True)
    click.get_current_context().exit(0 if report.is_sound else 1)

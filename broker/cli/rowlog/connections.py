"""The group of ``broker rowlog``, the options of HBase and ZooKeeper, and the connection to them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from broker import logs
from broker.cli.command.broker_calls import json_option
from broker.cli.command.options import flag
from broker.cli.command.problems import NotNow
from broker.config.sections import LogLevel, LogsConfig
from broker.config.text_forms import parse_address
from broker.errors import Unavailable, install_command

if TYPE_CHECKING:
    from broker.rowlog import RowLog
    from broker.rowlog.row_table import RowTable

Work = Callable[["RowLog"], Awaitable[None]]

id_argument = click.argument("name", metavar="ID")


@click.group()
def rowlog() -> None:
    """Show rowlogs in HBase, put messages into them, process and mend them.

    A rowlog is a queue of messages about the rows of one of your own HBase tables.

    \b
    broker rowlog list --hbase localhost:9090
    broker rowlog subscriptions mq --add indexer --max-tries 5
    broker rowlog put mq user/7 --cell d:name=Alice --payload created
    broker rowlog process mq --listener indexer=app.index:on_message --zookeeper localhost:2181
    broker rowlog dead mq indexer
    """


def reaching(command: Callable[..., Any]) -> Any:
    """Add ``--hbase``, ``--synced``, ``--zookeeper`` and ``--json`` to a command, which gets the first three as ``At``."""

    @functools.wraps(command)
    def run(*, hbase: str, zookeeper: str, synced: bool, **parameters: Any) -> None:
        command(At(hbase, zookeeper, synced=synced), **parameters)

    made = json_option(run)
    options = (
        click.option(
            "--hbase",
            metavar="HOST:PORT",
            default="localhost:9090",
            envvar="ROWLOG_HBASE",
            show_envvar=True,
            show_default=True,
            help="A Thrift-1 gateway of HBase; with --synced a Thrift-2 gateway.",
        ),
        flag("--synced", "Use Thrift-2, and sync each write to disk."),
        click.option(
            "--zookeeper",
            metavar="HOST:PORT,...",
            default="",
            envvar="ROWLOG_ZOOKEEPER",
            show_envvar=True,
            help="ZooKeeper's servers: notify processors of a change at once, and elect one in: process.",
        ),
    )
    for option in options:
        made = option(made)
    return made


def on_rowlog(work: Callable[..., Awaitable[None]]) -> Any:
    """Make a command of an async function that gets the rowlog with the ID, and the other parameters."""

    @functools.wraps(work)
    def run(at: At, *, name: str, **parameters: Any) -> None:
        at.run(name, lambda log: work(log, **parameters))

    return reaching(run)


def address_of(option: str, text: str) -> tuple[str, int]:
    """Return the host and the port that an option names. Raises click.UsageError."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


class At:
    """The addresses of HBase and ZooKeeper."""

    def __init__(self, hbase: str, zookeeper: str, *, synced: bool) -> None:
        self.address = address_of("--hbase", hbase)
        self.synced = synced
        self.zookeeper = [each for each in zookeeper.split(",") if each]

    @asynccontextmanager
    async def rows(self) -> AsyncIterator[RowTable]:
        """Yield a connection to HBase. Raises NotNow, click.ClickException."""
        try:
            from broker.rowlog import directory  # noqa: PLC0415 - Slow to import, and an extra.
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"rowlogs need {error.name}, which is not installed: {install_command('rowlog')}"
            ) from error
        try:
            async with directory.rows_at(self.address, synced=self.synced) as rows:
                yield rows
        except Unavailable as error:
            raise NotNow(error) from error

    def run(self, name: str, work: Work) -> None:
        """Open the rowlog ``name``, and run ``work`` with it."""

        async def done() -> None:
            from broker.rowlog import directory  # noqa: PLC0415

            async with self.rows() as rows, directory.opened(rows, name, self.zookeeper) as log:
                await work(log)

        run(done())


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end, with the rowlog's log on standard error."""
    with logs.writing(LogsConfig(log_level=LogLevel.WARNING)):
        asyncio.run(work)

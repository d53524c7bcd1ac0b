"""The command ``broker top``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import click

from broker.cli.options import SpanType, client_settings, teller, to_broker
from broker.cli.output import write_json
from broker.cli.top import screen
from broker.cli.top.cluster_snapshot import ClusterSnapshot, take
from broker.client import Client, Settings, Trouble
from broker.errors import BrokerError


class TopOptions(NamedTuple):
    """The options of ``broker top``."""

    settings: Settings
    tell: Callable[[Trouble], None]
    namespace: str | None
    rows_max: int
    interval_s: float


@click.command()
@click.option("--namespace", metavar="NS", help="Show the topics of one namespace.")
@click.option(
    "-n",
    "--limit",
    "rows_max",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="Show at most so many topics, the busiest ones.",
)
@click.option(
    "--interval",
    "interval_s",
    type=SpanType(0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two snapshots.",
)
@click.option("--once", is_flag=True, help="Show one snapshot, and end.")
@to_broker
def top(  # noqa: PLR0913 - One parameter per option.
    *,
    namespace: str | None,
    rows_max: int,
    interval_s: float,
    once: bool,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Show nodes and topics, the busiest first, until Ctrl-C.

    With --json, or if the output is not a terminal, the command shows one snapshot.

    \b
    broker top
    broker top --namespace audit --once
    broker top --json | jq '.topics[0]'
    """  # noqa: D301
    settings = client_settings(url, deadline_s)
    wanted = TopOptions(settings, teller(url), namespace, rows_max, interval_s)
    if not (once or as_json) and sys.stdout.isatty():
        with suppress(KeyboardInterrupt):  # The normal end of this command.
            asyncio.run(_follow(wanted))
        return
    snapshot = asyncio.run(_once(wanted))
    if as_json:
        write_json(snapshot.as_json())
    else:
        _write(snapshot)


async def _once(wanted: TopOptions) -> ClusterSnapshot:
    async with Client(settings=wanted.settings, on_trouble=wanted.tell) as client:
        return await take(client, wanted.namespace, wanted.rows_max)


def _write(snapshot: ClusterSnapshot) -> None:
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and only this command needs it.

    console = Console(highlight=False)
    shown = screen.tables(snapshot)
    if not console.is_terminal:
        console.width = max(console.width, console.measure(shown).maximum)  # A pipe has no width.
    console.print(shown)


SNAPSHOT_S_MAX: Final = 5.0
"""The most time that a snapshot may take when more follow; then the screen shows the failure."""


async def _follow(wanted: TopOptions) -> None:
    """Take snapshots and show them. Raises BrokerError if the first one fails; the screen shows later failures."""
    from rich.live import Live  # noqa: PLC0415 - Slow to import, and only this command needs it.

    snapshot = await _once(wanted)
    deadline_s = min(wanted.settings.deadline_s, SNAPSHOT_S_MAX)
    # This client tells no trouble, because a line on standard error would spoil the screen.
    async with Client(settings=wanted.settings, deadline_s=deadline_s) as client:
        with Live(screen.tables(snapshot), screen=True, auto_refresh=False) as live:
            while True:
                live.refresh()
                await asyncio.sleep(wanted.interval_s)
                problem = None
                try:
                    snapshot = await take(client, wanted.namespace, wanted.rows_max)
                except BrokerError as error:
                    problem = error.message
                live.update(screen.tables(snapshot, problem))

"""The command ``broker top``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Final, NamedTuple

import click

from broker.cli.options import client_settings, to_broker
from broker.cli.output import write_json
from broker.cli.top import screen
from broker.cli.top.cluster_snapshot import ClusterSnapshot, take
from broker.client import Client, Settings
from broker.errors import BrokerError


class TopOptions(NamedTuple):
    """What is looked at, and how often."""

    settings: Settings
    namespace: str | None
    rows_max: int
    interval_s: float


@click.command()
@click.option("--namespace", metavar="NS", help="Topics of one namespace.")
@click.option(
    "-n",
    "--limit",
    "rows_max",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="At most so many topics, the busiest ones.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
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

    With --json, or where the output is no terminal, it looks once.

    \b
    broker top
    broker top --namespace audit --once
    broker top --json | jq '.topics[0]'
    """  # noqa: D301
    wanted = TopOptions(client_settings(url, deadline_s), namespace, rows_max, interval_s)
    if not (once or as_json) and sys.stdout.isatty():
        with suppress(KeyboardInterrupt):  # By which it is meant to end.
            asyncio.run(_follow(wanted))
        return
    snapshot = asyncio.run(_once(wanted))
    if as_json:
        write_json(snapshot.told())
    else:
        _write(snapshot)


async def _once(wanted: TopOptions) -> ClusterSnapshot:
    async with Client(settings=wanted.settings) as client:
        return await take(client, wanted.namespace, wanted.rows_max)


def _write(snapshot: ClusterSnapshot) -> None:
    from rich.console import Console  # noqa: PLC0415 - Slow to import; other commands go without.

    console = Console(highlight=False)
    shown = screen.tables(snapshot)
    if not console.is_terminal:
        console.width = max(console.width, console.measure(shown).maximum)  # A pipe has no width.
    console.print(shown)


PATIENCE_S: Final = 5.0
"""How long a look may take while others follow, before it is told that it fails."""


async def _follow(wanted: TopOptions) -> None:
    """Look again and again. Raises BrokerError if the first look fails; later ones are told of on the screen."""
    from rich.live import Live  # noqa: PLC0415 - Slow to import; other commands go without.

    deadline_s = min(wanted.settings.deadline_s, PATIENCE_S)
    async with Client(settings=wanted.settings, deadline_s=deadline_s) as client:
        snapshot = await take(client, wanted.namespace, wanted.rows_max)
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

"""``broker top``: nodes, and topics, the busiest first, live in the terminal."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from broker.bench.overview import ClusterSnapshot, NodeRow, TopicRow, take
from broker.cli.command.broker_calls import BrokerCall, to_broker
from broker.cli.command.options import SpanType, flag, most_option, option
from broker.cli.command.output import cell, size_text
from broker.cli.nodes.cluster import STATE_COLOURS
from broker.client import Client
from broker.errors import BrokerError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


@click.command()
@click.option("--namespace", metavar="NS", help="Show the topics of one namespace.")
@most_option(50, 500, "Show at most so many topics, the busiest ones.", "rows_max")
@option("--interval", SpanType(0.2), 2.0, "Seconds between two snapshots.", "interval_s")
@flag("--once", "Show one snapshot, and end.")
@to_broker
def top(
    call: BrokerCall, namespace: str | None, rows_max: int, interval_s: float, once: bool
) -> None:
    """Show nodes and topics, the busiest first, until Ctrl-C.

    With --json, or if the output is not a terminal, the command shows one snapshot.

    \b
    broker top
    broker top --namespace audit --once
    broker top --json | jq '.topics[0]'
    """
    taking = _Taking(call, namespace, rows_max)
    if not (once or call.as_json) and sys.stdout.isatty():
        with suppress(KeyboardInterrupt):  # The normal end of this command.
            asyncio.run(_follow(taking, interval_s))
        return
    snapshot = asyncio.run(taking.once())
    if call.as_json:
        call.write(snapshot.as_json())
    else:
        _write(snapshot)


class _Taking(NamedTuple):
    """The options of the snapshots."""

    call: BrokerCall
    namespace: str | None
    rows_max: int

    async def once(self) -> ClusterSnapshot:
        """Take one with a client of its own, which tells why it waits."""
        async with Client(settings=self.call.settings, on_trouble=self.call.teller) as client:
            return await self.by(client)

    async def by(self, client: Client) -> ClusterSnapshot:
        """Take one."""
        return await take(client, self.namespace, self.rows_max)


def _write(snapshot: ClusterSnapshot) -> None:
    from rich.console import Console  # noqa: PLC0415 - Slow to import, and only this command needs it.

    console = Console(highlight=False)
    shown = tables(snapshot)
    if not console.is_terminal:
        console.width = max(console.width, console.measure(shown).maximum)  # A pipe has no width.
    console.print(shown)


SNAPSHOT_S_MAX: Final = 5.0
"""The most time that a snapshot may take when more follow; then the screen shows the failure."""


async def _follow(taking: _Taking, interval_s: float) -> None:
    """Take snapshots and show them. Raises BrokerError if the first one fails; the screen shows later failures."""
    from rich.live import Live  # noqa: PLC0415 - Slow to import, and only this command needs it.

    snapshot = await taking.once()
    deadline_s = min(taking.call.deadline_s, SNAPSHOT_S_MAX)
    # This client tells no trouble, because a line on standard error would spoil the screen.
    async with Client(settings=taking.call.settings, deadline_s=deadline_s) as client:
        with Live(tables(snapshot), screen=True, auto_refresh=False) as live:
            while True:
                live.refresh()
                await asyncio.sleep(interval_s)
                problem = None
                try:
                    snapshot = await taking.by(client)
                except BrokerError as error:
                    problem = error.message
                live.update(tables(snapshot, problem))


# --- The screen ------------------------------------------------------------------------------------


def tables(snapshot: ClusterSnapshot, problem: str | None = None) -> Group:
    """Return the nodes above the topics; ``problem`` says why the snapshot could not be renewed."""
    from rich.console import Group  # noqa: PLC0415 - Slow to import, and only this command needs it.
    from rich.table import Table  # noqa: PLC0415

    nodes = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODE", "URL", "STATE", "TOPICS", "UP", ""):
        nodes.add_column(name, no_wrap=bool(name))
    for row in snapshot.nodes:
        nodes.add_row(*(cell(text, STATE_COLOURS.get(text, "")) for text in node_cells(row)))
    topics = Table(box=None, pad_edge=False, header_style="bold")
    topics.add_column("TOPIC", no_wrap=True)
    for name in ("PUBLISHED/s", "POLLED/s", "MESSAGES", "BYTES"):
        topics.add_column(name, justify="right", no_wrap=True)
    topics.add_column("LAST")
    for one in snapshot.topics:
        topics.add_row(*map(cell, topic_cells(one)), style="" if one.problem is None else "red")
    parts: list[RenderableType] = [nodes, cell(""), topics, cell(""), cell(remark(snapshot), "dim")]
    if problem is not None:
        parts.append(cell(problem, "red"))
    return Group(*parts)


def node_cells(row: NodeRow) -> list[str]:
    """Return the cells of a node's row."""
    known = (
        "" if row.node is None else str(row.node),
        row.url,
        row.state,
        "" if row.topics_led is None else f"{row.topics_led:,}",
        "" if row.uptime_s is None else str(timedelta(seconds=int(row.uptime_s))),
    )
    return [*known, row.problem or ""]


def topic_cells(row: TopicRow) -> list[str]:
    """Return the cells of a topic's row."""
    if row.problem is not None:
        return [row.topic, "", "", "", "", row.problem]
    about = "~" if row.is_estimate else ""
    return [
        row.topic,
        f"{row.publish_per_s:,.1f}",
        f"{row.poll_per_s:,.1f}",
        f"{about}{row.messages or 0:,}",
        f"{about}{size_text(row.bytes or 0)}",
        row.last or "",
    ]


def remark(snapshot: ClusterSnapshot) -> str:
    """Return the line below the tables: the number of topics, and how many of them are left out."""
    text = f"{snapshot.topics_there:,} topic{'' if snapshot.topics_there == 1 else 's'}"
    if snapshot.topics_asked < snapshot.topics_there:
        text += f"; figures only of the first {snapshot.topics_asked:,} by name"
    if len(snapshot.topics) < snapshot.topics_asked:
        text += f"; the busiest {len(snapshot.topics):,} are shown"
    return text + ". Rates are averages of the last minute."

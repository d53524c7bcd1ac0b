"""A snapshot as tables for the terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from broker.cli.output import cell
from broker.cli.top.cluster_snapshot import ClusterSnapshot, NodeRow, TopicRow

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_COLOURS: Final = {"serving": "green", "drained": "yellow", "stopping": "yellow", "silent": "red"}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def tables(snapshot: ClusterSnapshot, problem: str | None = None) -> Group:
    """Return the nodes above the topics; ``problem`` says why the snapshot could not be renewed."""
    from rich.console import Group  # noqa: PLC0415 - Slow to import, and only this command needs it.
    from rich.table import Table  # noqa: PLC0415

    nodes = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODE", "URL", "STATE", "TOPICS", "UP", ""):
        nodes.add_column(name, no_wrap=bool(name))
    for row in snapshot.nodes:
        nodes.add_row(*(cell(text, _COLOURS.get(text, "")) for text in node_cells(row)))
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


def size_text(size: float) -> str:
    """Return a size with a unit, in three or four digits."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def remark(snapshot: ClusterSnapshot) -> str:
    """Return the line below the tables: the number of topics, and how many of them are left out."""
    text = f"{snapshot.topics_there:,} topic{'' if snapshot.topics_there == 1 else 's'}"
    if snapshot.topics_asked < snapshot.topics_there:
        text += f"; figures only of the first {snapshot.topics_asked:,} by name"
    if len(snapshot.topics) < snapshot.topics_asked:
        text += f"; the busiest {len(snapshot.topics):,} are shown"
    return text + ". Rates are averages of the last minute."

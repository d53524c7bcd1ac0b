"""Plots of a history: rate, latency and leaders over time, with the faults shaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from chaos.figures import FAULT
from chaos.history import WRITES, Event, Operation, calls_of

_S: Final = 1_000_000_000
_COLOURS: Final = {"ok": "#2a7f3f", "fail": "#b8860b", "unknown": "#b22222"}
_NAME_SHARE: Final = 0.12
"""The approximate width of a fault's name, as a share of the plot."""
_PERCENTILES: Final = ((50, "p50"), (99, "p99"))

# The same history gives the same file, and its text can be searched.
mpl.rcParams.update({"svg.hashsalt": "chaos", "svg.fonttype": "none"})


class Shade(NamedTuple):
    """The time of a fault, in seconds from the beginning."""

    kind: str
    begins_s: float
    ends_s: float


class Point(NamedTuple):
    """A write that has ended."""

    ended_s: float
    latency_ms: float
    outcome: str


def draw(events: Sequence[Event], folder: Path) -> list[Path]:
    """Write ``rate.svg`` and ``leaders.svg`` into a folder; do nothing for an empty history."""
    if not events:
        return []
    calls = calls_of(events)
    begin_ns, end_ns = events[0].time_ns, events[-1].time_ns
    shades = shades_of(calls, begin_ns, end_ns)
    length_s = max((end_ns - begin_ns) / _S, 1.0)
    made = {
        "rate.svg": _rate(points_of(calls, begin_ns), shades, length_s),
        "leaders.svg": _leaders(leads_of(calls, begin_ns), shades, length_s),
    }
    for name, figure in made.items():
        figure.savefig(folder / name, metadata={"Date": None})
    return [folder / name for name in made]


def shades_of(calls: Sequence[Operation], begin_ns: int, end_ns: int) -> list[Shade]:
    """Return the faults of a history. A fault that was not healed lasts to the end."""
    return [
        Shade(
            call.asked["kind"],
            (call.invoked_ns - begin_ns) / _S,
            ((call.ended_ns or end_ns) - begin_ns) / _S,
        )
        for call in calls
        if call.op == FAULT
    ]


def points_of(calls: Sequence[Operation], begin_ns: int) -> list[Point]:
    """Return the writes that have ended."""
    return [
        Point(
            (call.ended_ns - begin_ns) / _S,
            (call.ended_ns - call.invoked_ns) / 1e6,
            call.outcome,
        )
        for call in calls
        if call.op in WRITES and call.ended_ns is not None
    ]


def leads_of(calls: Sequence[Operation], begin_ns: int) -> dict[str, list[tuple[float, str]]]:
    """Return the times and nodes of each topic's acknowledgements."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for call in calls:
        if call.op == "publish" and call.is_ok and call.node and call.ended_ns is not None:
            found[call.topic].append(((call.ended_ns - begin_ns) / _S, call.node))
    return {topic: sorted(leads) for topic, leads in sorted(found.items())}


def by_second(points: Sequence[Point], outcome: str, seconds: int) -> list[int]:
    """Count the writes with an outcome that ended in each second."""
    counts = [0] * seconds
    for point in points:
        if point.outcome == outcome and point.ended_s < seconds:
            counts[int(point.ended_s)] += 1
    return counts


def percentiles(points: Sequence[Point], percent: int, seconds: int) -> list[float | None]:
    """Return a latency percentile of the acknowledged writes of each second; None without any."""
    of_second: list[list[float]] = [[] for _ in range(seconds)]
    for point in points:
        if point.outcome == "ok" and point.ended_s < seconds:
            of_second[int(point.ended_s)].append(point.latency_ms)
    return [
        sorted(latencies)[min(len(latencies) * percent // 100, len(latencies) - 1)]
        if latencies
        else None
        for latencies in of_second
    ]


def _rate(points: Sequence[Point], shades: Sequence[Shade], length_s: float) -> Figure:
    figure = Figure(figsize=(12, 7), layout="constrained")
    rate, latency = figure.subplots(2, 1, sharex=True)
    seconds = range(int(length_s) + 1)
    for outcome, colour in _COLOURS.items():
        counts = by_second(points, outcome, len(seconds))
        rate.plot(seconds, counts, color=colour, label=outcome, linewidth=1)
    rate.set_ylabel("writes in a second")
    rate.legend(loc="upper right")
    for percent, name in _PERCENTILES:
        values = [
            float("nan") if value is None else value
            for value in percentiles(points, percent, len(seconds))
        ]
        latency.plot(seconds, values, label=name, linewidth=1, marker=".", markersize=3)
    latency.set_yscale("log")
    latency.set_ylabel("latency, ms")
    latency.set_xlabel("seconds")
    latency.legend(loc="upper right")
    _shade(rate, shades, named=True)
    _shade(latency, shades)
    return figure


def _leaders(
    leads: dict[str, list[tuple[float, str]]], shades: Sequence[Shade], length_s: float
) -> Figure:
    figure = Figure(figsize=(12, 1.5 + 1.2 * max(len(leads), 1)), layout="constrained")
    axes = figure.subplots(max(len(leads), 1), 1, sharex=True, squeeze=False)[:, 0]
    nodes = sorted({node for each in leads.values() for _, node in each})
    for axis, (topic, each) in zip(axes, leads.items(), strict=False):
        axis.plot(
            [at_s for at_s, _ in each],
            [nodes.index(node) for _, node in each],
            drawstyle="steps-post",
            linewidth=1,
        )
        axis.set_yticks(range(len(nodes)), nodes, fontsize=7)
        axis.set_title(topic, fontsize=8, loc="left")
        axis.set_xlim(0, length_s)
        _shade(axis, shades)
    axes[-1].set_xlabel("seconds; acknowledging node")
    return figure


def rows_of(shades: Sequence[Shade]) -> list[int]:
    """Return the text line of each fault's name, so that close names do not overlap."""
    ends_s: list[float] = []
    rows = []
    for shade in shades:
        row = next((row for row, end_s in enumerate(ends_s) if end_s <= shade.begins_s), None)
        if row is None:
            row = len(ends_s)
            ends_s.append(0.0)
        ends_s[row] = shade.begins_s + _NAME_SHARE * max(one.ends_s for one in shades)
        rows.append(row)
    return rows


def _shade(axis: Any, shades: Sequence[Shade], *, named: bool = False) -> None:
    for shade, row in zip(shades, rows_of(shades), strict=True):
        axis.axvspan(shade.begins_s, shade.ends_s, color="#888888", alpha=0.18, linewidth=0)
        if named:
            axis.text(
                shade.begins_s,
                1.01 + 0.05 * row,
                shade.kind,
                transform=axis.get_xaxis_transform(),
                fontsize=7,
            )

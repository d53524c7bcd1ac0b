"""Show results as text, and write docs/results/benchmarks.md with a plot: ``python -m benchmarks.report FILE``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.harness import say
from benchmarks.occupancy import OTHERS_MAX, STOLEN_MAX

RESULTS = Path(__file__).resolve().parent.parent / "docs/results"
_MADE = "<!-- Made by `python -m benchmarks.report`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `make bench` on {date}: {processor}, {cores} cores, Linux {kernel}, Python {python}; the
commit was {commit}. Peers: CDAP's own messaging server {cdap} on LevelDB and Kafka {kafka}
(`flush.messages=1`, aiokafka {aiokafka} with `acks=all`), both on Java {java}, and Redis {redis}
(`appendfsync always`, redis-py {redispy}). All servers acknowledge after a sync to disk. Payloads are 256 random bytes.
The server has one core, and the load has the other. Servers are warm, and take turns. While one is measured, the others
are frozen.

For comparison, the machine itself appends and syncs 256 bytes **{syncs:,.0f} times a second**, one after the other (p50
{sync_p50:.3f} ms, p99 {sync_p99:.3f} ms).

Each figure is a median of kept runs. A run is kept if other programs used at most {others} of a core, and the host
took away at most {stolen} of a core. *Spread* is the distance between the highest and the lowest kept run. A ratio is
the median of the ratios of all turns. If the middle half of the turns lies on both sides of the bound, and is wider
than {spread:.0%} of the median, the ratio is no result. If too few runs were kept, the median of all runs is in
brackets. *Server* is the processor time of the server for each message or poll. *Acks a sync* were counted with strace
in a separate run.
"""


def save(results: dict[str, Any], file: Path) -> None:
    """Write results as JSON. Make the folder if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")


def exit_code(results: dict[str, Any]) -> int:
    """Print the bounds that were missed; return 1 if there are any, else 0."""
    ratios = [ratio for question in results["questions"] for ratio in question["ratios"]]
    missed = [ratio["text"] for ratio in ratios if ratio["verdict"] == "missed"]
    for text in missed:
        say(f"missed: {text}")
    return 1 if missed else 0


def as_text(results: dict[str, Any]) -> str:
    """Return tables for a terminal."""
    lines = [""]
    for question in results["questions"]:
        lines += ["", f"({question['letter']}) {question['title']}", ""]
        rows = [_HEADINGS, *(_row(series) for series in question["series"])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        lines.append("")
        lines += [f"  {_ratio(ratio)}" for ratio in question["ratios"]]
        lines += [f"  {note}" for note in question["notes"]]
    return "\n".join(lines)


_HEADINGS = ("", "median", "spread", "kept", "p50", "p99", "server", "acks a sync")


def _row(series: dict[str, Any]) -> tuple[str, ...]:
    if series["absent"]:
        return (series["name"], "not measured", "", "", "", "", "", "")
    median = series["median"]
    if median is None:
        shown = f"({_figure(series['median_of_all_runs'], series['unit'])})"
    else:
        shown = _figure(median, series["unit"])
    return (
        series["name"],
        shown,
        "" if series["spread"] is None else f"{series['spread']:.0%}",
        f"{series['runs_kept']} of {len(series['runs'])}",
        "" if series["p50_ms"] is None else f"{series['p50_ms']:.2f} ms",
        "" if series["p99_ms"] is None else f"{series['p99_ms']:.2f} ms",
        "" if series["server_cpu_us"] is None else f"{series['server_cpu_us']:.1f} µs",
        "" if series["acks_per_sync"] is None else f"{series['acks_per_sync']:,.1f}",
    )


def _figure(value: float, unit: str) -> str:
    return f"{value:.3f} {unit}" if unit == "ms" else f"{value:,.0f} {unit}"


def _ratio(ratio: dict[str, Any]) -> str:
    parts = [ratio["text"] + ":"]
    parts.append("-" if ratio["value"] is None else f"{ratio['value']:.2f}")
    if ratio["must"] is not None:
        parts.append(f"(must be {'<=' if ratio['at_most'] else '>='} {ratio['must']}:")
        parts.append(f"{ratio['why'] or ratio['verdict']})")
    elif ratio["why"]:
        parts.append(f"({ratio['why']})")
    return " ".join(parts)


# --- The page ------------------------------------------------------------------------------------


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    middle = sorted(results["raw_sync"], key=lambda raw: raw["per_second"])
    raw = middle[len(middle) // 2]
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in ("date", "processor", "cores", "kernel", "python")},
        commit=results["commit"],
        cdap=results["servers"]["cdap-tms"],
        kafka=results["servers"]["kafka"],
        redis=results["servers"]["redis"],
        aiokafka=results["packages"]["aiokafka"],
        redispy=results["packages"]["redis"],
        java=results["java"],
        syncs=raw["per_second"],
        sync_p50=raw["p50_ms"],
        sync_p99=raw["p99_ms"],
        others=OTHERS_MAX,
        stolen=STOLEN_MAX,
        spread=RATIO_SPREAD_MAX,
    )
    parts = ["# Benchmarks", _MADE, introduction, "![Ratios to what they must be](benchmarks.svg)"]
    if results["quick"]:
        parts.insert(2, "**A quick look with short runs: no basis for conclusions.**")
    for question in results["questions"]:
        parts += section(question)
    return "\n\n".join(parts) + "\n"


def section(question: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of one question's section of a page."""
    yield f"## ({question['letter']}) {question['title']}"
    rows = [_HEADINGS, *(_row(series) for series in question["series"])]
    ruler = "|" + "|".join(["---", *["--:"] * (len(_HEADINGS) - 1)]) + "|"
    lines = [f"| {' | '.join(row)} |" for row in rows]
    yield "\n".join([lines[0], ruler, *lines[1:]])
    yield "\n".join(f"* {_ratio(ratio)}" for ratio in question["ratios"])
    apart = [
        f"{series['name']}: {run['apart']}"
        for series in question["series"]
        for run in series["runs"]
        if run["apart"]
    ]
    if apart:
        yield f"Runs kept apart: {len(apart)}, such as {apart[0]}."
    yield from question["notes"]


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw every judged ratio beside its bound."""
    import matplotlib as mpl  # noqa: PLC0415 - Only plots need it.

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "benchmarks"
    from matplotlib import pyplot as plt  # noqa: PLC0415 - It must come after the choice of the backend.

    judged = [
        (f"({question['letter']}) {ratio['text']}", ratio)
        for question in results["questions"]
        for ratio in question["ratios"]
        if ratio["must"] is not None and ratio["value"] is not None
    ]
    figure, axes = plt.subplots(figsize=(10, 1 + 0.45 * len(judged)), layout="constrained")
    for place, (_, ratio) in enumerate(judged):
        settled = ratio["verdict"] in {"met", "missed"}
        colour = {"met": "tab:green", "missed": "tab:red"}.get(ratio["verdict"], "lightgrey")
        axes.barh(place, ratio["value"], color=colour, height=0.6)
        mark = "<" if ratio["at_most"] else ">"
        axes.plot(ratio["must"], place, marker=mark, color="black", markersize=7)
        label = f" {ratio['value']:.2f}" + ("" if settled else f" ({ratio['verdict']})")
        axes.text(max(ratio["value"], ratio["must"] * 1.05), place, label, va="center")
    axes.set_yticks(range(len(judged)), [text for text, _ in judged])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max((ratio["value"] for _, ratio in judged), default=1.0))
    axes.set_xlabel("ratio; the triangle is its bound: at least (>) or at most (<)")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(source: Path) -> None:
    """Write the page, its plot, and their figures."""
    results = json.loads(source.read_text())
    (RESULTS / "benchmarks.md").write_text(as_markdown(results))
    plot(results, RESULTS / "benchmarks.svg")
    if source.resolve() != (RESULTS / "benchmarks.json").resolve():
        shutil.copyfile(source, RESULTS / "benchmarks.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m benchmarks.report", description="Write the page of the benchmarks, and its plot."
    )
    parser.add_argument("file", type=Path, help="the JSON file of `make bench ARGS='--json FILE'`")
    main(parser.parse_args().file)

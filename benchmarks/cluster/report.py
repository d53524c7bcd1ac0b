"""Write docs/results/benchmarks-cluster.md: ``python -m benchmarks.cluster.report FILE``."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.occupancy import OTHERS_MAX, STOLEN_MAX
from benchmarks.report import RESULTS, section

PAGE, FIGURES = "benchmarks-cluster.md", "benchmarks-cluster.json"
_MADE = "<!-- Made by `python -m benchmarks.cluster.report`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `make bench-cluster` on {date}: {processor}, {cores} cores, Linux {kernel}, Python {python},
Java {java}; the commit was {commit}. ZooKeeper, HBase {hbase} (master, one region server, one Thrift-2
gateway, on the local file system, which syncs), three nodes and the load ran on one machine. Eight processes share its
cores. So the rates do not show what separate machines can do, but the ratios do.

Each figure is compared with a **bare commit**. A client makes the same conditional write over the same kind of
connection to the same gateway, and the region server syncs it (`FSYNC_WAL`). It makes as many commits at a time as
there are topics. The bare client takes no requests, serves no consumers, and orders no writers.

Payloads are 256 random bytes. Each topic has one connection, on which one request follows the other. So the node joins
no requests into larger batches. The publishes run like the bare commits: in a process with a thread for each topic,
which blocks until it has the answer. Servers are warm, and sides take turns.

Each figure is a median of kept runs. A run is kept if other programs used at most {others} of a core, and the host
took away at most {stolen} of a core. *Spread* is the distance between the highest and the lowest kept run. A ratio is
the median of the ratios of all turns. If the middle half of the turns lies on both sides of the bound, and is wider
than {spread:.0%} of the median, the ratio is no result. If too few runs were kept, the median of all runs is in
brackets. The machine appends and syncs 256 bytes {syncs:,.0f} times a second.
"""

_RAW = (
    "Just afterwards, single bare commits of one row reached {alone:,.0f} a second (p50 {p50:.2f} ms), and 8 at a "
    "time of 100 rows reached {batched:,.0f} messages a second."
)


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    syncs = sorted(raw["per_second"] for raw in results["raw_sync"])
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in ("date", "processor", "cores", "kernel", "python")},
        java=results["java"],
        commit=results["commit"],
        hbase=results["servers"]["hbase"],
        syncs=syncs[len(syncs) // 2],
        others=OTHERS_MAX,
        stolen=STOLEN_MAX,
        spread=RATIO_SPREAD_MAX,
    )
    parts = ["# Benchmarks of a cluster", _MADE, introduction]
    if results["quick"]:
        parts.insert(2, "**A quick look with short runs: no basis for conclusions.**")
    for question in results["questions"]:
        parts += [part for part in section(question) if part]
        parts.append(_RAW.format(**question["bare"]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main(source: Path) -> None:
    """Write the page and its figures."""
    (RESULTS / PAGE).write_text(as_markdown(json.loads(source.read_text())))
    if source.resolve() != (RESULTS / FIGURES).resolve():
        shutil.copyfile(source, RESULTS / FIGURES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m benchmarks.cluster.report",
        description="Write the page of a cluster's benchmarks.",
    )
    parser.add_argument(
        "file", type=Path, help="the JSON file of `make bench-cluster ARGS='--json FILE'`"
    )
    main(parser.parse_args().file)

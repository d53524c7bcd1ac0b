"""docs/results/benchmarks-cluster.md: ``python -m benchmarks.cluster.report FILE``."""

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
gateway, on the local file system, which syncs) and three nodes were processes of one machine, and so was
the load: eight processes share its cores, so rates are no measure of what machines of their own can do.
Relations are. Each figure stands beside a **bare commit**: a client makes the same
conditional write over the same kind of connection to the same gateway, and the region server syncs it
(`FSYNC_WAL`); as many of them at a time as there are topics. It serves nobody, orders nothing
between writers, and takes no requests.

Payloads are 256 random bytes. Each topic has one connection, on which one request follows the other, so
nothing is joined into larger batches. Publishes beside bare commits are made as those are: by a process with
a thread for each topic, which blocks until it is answered. Servers are warm, and sides take turns.

Each figure is a median of kept runs. A run is kept if nothing else used more than {others} of a core and
no more than {stolen} of a core was stolen by the host. *Spread* is how far apart kept runs lie. A ratio is
the median of the ratios turn by turn; where their middle half lies around its bound and is wider than
{spread:.0%} of it, it is no result. Where too few runs were kept, the median of all stands in brackets. The machine appends and syncs 256 bytes {syncs:,.0f} times a second.
"""

_RAW = (
    "Beside it, just after: bare commits of one row, one after the other, went {alone:,.0f} times a second "
    "(p50 {p50:.2f} ms), and 8 at a time of 100 rows {batched:,.0f} messages a second."
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
    """Write the page and the figures that it is made of."""
    (RESULTS / PAGE).write_text(as_markdown(json.loads(source.read_text())))
    if source.resolve() != (RESULTS / FIGURES).resolve():
        shutil.copyfile(source, RESULTS / FIGURES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m benchmarks.cluster.report",
        description="Write the page of a cluster's benchmarks.",
    )
    parser.add_argument(
        "file", type=Path, help="what `make bench-cluster ARGS='--json FILE'` wrote"
    )
    main(parser.parse_args().file)

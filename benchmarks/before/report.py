"""Write docs/results/benchmarks-storage.md: ``python -m benchmarks.before.report FILE…``.

Several runs may answer the questions. If several files answer a question, the last answer counts. Each part of the
page names its commit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.occupancy import OTHERS_MAX, STOLEN_MAX
from benchmarks.report import RESULTS, save, section

PAGE, FIGURES = "benchmarks-storage.md", "benchmarks-storage.json"
_MADE = "<!-- Made by `python -m benchmarks.before.report`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.before` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}. *Now* is commit {commit}, *before* is commit {before}. Their servers took turns in one run, on
the same machine, with the same load. Payloads are 256 random bytes. A standalone server has one core, and the load has
the other. Each cluster is three nodes on the same ZooKeeper and HBase {hbase} (one region server, one Thrift-2
gateway), with its own tables.

Each figure is a median of kept runs. A run is kept if other programs used at most {others} of a core, and the host
took away at most {stolen} of a core. *Spread* is the distance between the highest and the lowest kept run. A ratio is
the median of the ratios of all turns. If the middle half of the turns lies on both sides of the bound, and is wider
than {spread:.0%} of the median, the ratio is no result. If too few runs were kept, the median of all runs is in
brackets. The machine appends and syncs 256 bytes {syncs:,.0f} times a second.
"""


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in ("date", "processor", "cores", "kernel", "python")},
        java=results["java"],
        commit=results["commit"],
        before=results["before"],
        hbase=results["servers"]["hbase"],
        syncs=results["raw_sync"][0]["per_second"],
        others=OTHERS_MAX,
        stolen=STOLEN_MAX,
        spread=RATIO_SPREAD_MAX,
    )
    parts = ["# Benchmarks of the storage, now and before", _MADE, introduction]
    if results["quick"]:
        parts.insert(2, "**A quick look with short runs: no basis for conclusions.**")
    for question in results["questions"]:
        parts += [part for part in section(question) if part]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def together(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the answers of several runs into one."""
    answers: dict[str, dict[str, Any]] = {}
    for run in runs:
        for question in run["questions"]:
            of = f"Measured at commit {run['commit']}, {run['date']}."
            notes = question.get("notes", [])
            answers[question["letter"]] = question | {"notes": [*notes, of]}
    commits = dict.fromkeys(run["commit"] for run in runs)
    return runs[-1] | {
        "commit": ", ".join(commits),
        "quick": any(run.get("quick", False) for run in runs),
        "questions": list(answers.values()),
    }


def main(*sources: Path) -> None:
    """Write the page and its figures."""
    runs = [json.loads(source.read_text()) for source in sources]
    results = runs[0] if len(runs) == 1 else together(runs)
    (RESULTS / PAGE).write_text(as_markdown(results))
    save(results, RESULTS / FIGURES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m benchmarks.before.report",
        description="Write the page of the storage's benchmarks.",
    )
    parser.add_argument(
        "files", nargs="+", type=Path, help="the JSON files of `python -m benchmarks.before`"
    )
    main(*parser.parse_args().files)

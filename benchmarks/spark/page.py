"""docs/results/benchmarks-spark.md: ``python -m benchmarks.spark.page FILE…``. Questions may be asked in several runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.before.report import together
from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.report import RESULTS, plot, section

PAGE, FIGURES, PLOT = "benchmarks-spark.md", "benchmarks-spark.json", "benchmarks-spark.svg"
_MADE = "<!-- Made by `python -m benchmarks.spark.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.spark` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. One Spark session with two threads; the servers, Spark's own
processes and those of Python share the cores. {rows:,} messages of 100 bytes lie in one topic, on LevelDB, and in one
topic of Kafka with one partition, and are read in five micro-batches, of which the first does not count. Kafka's side
is Spark's own source and sink, in Java. Spark speaks to Python through Unix sockets (`docs/guides/spark.md`).

The sides take turns. A ratio is the median of the ratios turn by turn; where their middle half lies around its bound
and is wider than {spread:.0%} of it, it is no result. *Spread* is how far apart runs lie. *Server* is the broker's
processor time for each row that Spark read, and in a copy wrote.
"""

_NOTES = """\
*Copy*: this sink stores in stages and publishes once, synced, so that each row is there exactly once. Kafka's sink
is at least once: a batch that is repeated is there twice. By default Kafka acknowledges from the page cache; the
third side syncs each batch, as this broker does.
"""


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    names = ("date", "processor", "cores", "kernel", "python", "java", "commit", "rows")
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in names}, spread=RATIO_SPREAD_MAX
    )
    parts = ["# Benchmarks of Spark over topics", _MADE, introduction, f"![Ratios]({PLOT})"]
    for question in results["questions"]:
        parts += [part for part in section(question) if part]
        if question["letter"] == "copy":
            parts.append(_NOTES)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main(*sources: Path) -> None:
    """Write the page, the plot, and the figures that they are made of."""
    runs = [json.loads(source.read_text()) for source in sources]
    results = runs[0] if len(runs) == 1 else together(runs)
    (RESULTS / PAGE).write_text(as_markdown(results))
    (RESULTS / FIGURES).write_text(json.dumps(results, indent=1) + "\n")
    plot(results, RESULTS / PLOT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sources", nargs="+", type=Path, help="figures, as benchmarks.spark wrote them"
    )
    main(*parser.parse_args().sources)

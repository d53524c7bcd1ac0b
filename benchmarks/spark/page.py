"""Write docs/results/benchmarks-spark.md: ``python -m benchmarks.spark.page FILE…``.

Several runs may answer the questions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.before.report import together
from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.report import RESULTS, plot, save, section

PAGE, FIGURES, PLOT = "benchmarks-spark.md", "benchmarks-spark.json", "benchmarks-spark.svg"
_MADE = "<!-- Made by `python -m benchmarks.spark.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.spark` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. There is one Spark session with two threads. The servers, Spark's own
processes and its Python processes share the cores. {rows:,} messages of 100 bytes are in one topic on LevelDB, and in
one topic of Kafka with one partition. Spark reads them in five micro-batches, and the first does not count. Kafka's
side is Spark's own source and sink, in Java. Spark talks to Python through Unix sockets (`docs/guides/spark.md`).

The sides take turns. A ratio is the median of the ratios of all turns. If the middle half of the turns lies on both
sides of the bound, and is wider than {spread:.0%} of the median, the ratio is no result. *Spread* is the distance
between the highest and the lowest run. *Server* is the broker's processor time for each row that Spark read, and in a
copy also wrote.
"""

_NOTES = """\
*Copy*: this broker's sink stores in stages and publishes once, synced. So each row is stored exactly once. Kafka's sink
is at least once: a repeated batch is stored twice. By default Kafka acknowledges from the page cache. The third side
syncs each batch, as this broker does.
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
    """Write the page, the plot, and their figures."""
    runs = [json.loads(source.read_text()) for source in sources]
    results = runs[0] if len(runs) == 1 else together(runs)
    (RESULTS / PAGE).write_text(as_markdown(results))
    save(results, RESULTS / FIGURES)
    plot(results, RESULTS / PLOT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, help="the JSON files of benchmarks.spark")
    main(*parser.parse_args().sources)

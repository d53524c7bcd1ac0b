"""Write docs/results/benchmarks-streams.md: ``python -m benchmarks.streams.page FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.report import RESULTS, save, section

PAGE, FIGURES = "benchmarks-streams.md", "benchmarks-streams.json"
LETTERS = ("sql", "window", "join", "keyed", "python")
LOAD_ALONE_MAX = 1.0
_MADE = "<!-- Made by `python -m benchmarks.streams.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.streams` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. There is one Spark session with two threads. The broker, Spark's own
processes and its Python processes share the cores.

{alone}

*Here* is a job of `broker.streams` (`benchmarks/streams/here.py`). *By hand* is the same job, written by hand in PySpark
(`benchmarks/streams/hand.py`). Both read the same topics, with JSON of about 100 bytes, and publish to topics of the
same broker by the format `tms`. The first turn does not count; it compares the numbers of published messages. Each run
reads a prepared topic in {shares} micro-batches. Its figure is for all micro-batches but the first, from commit to
commit.

The sides take turns. A ratio is the median of the ratios of all turns. If the middle half of the turns lies on both
sides of the bound, and is wider than {spread:.0%} of the median, the ratio is no result. *Spread* is the distance
between the highest and the lowest run. *Server* is the broker's processor time for each record that was read.
"""

_SHARED = (
    "**Other work ran on the machine at the time** (load {before:.1f} before and {after:.1f} after, of {cores} cores). "
    "The ratios are\nstill fair, as the sides take turns. The figures themselves are too low."
)
_ALONE = "Little else ran (load {before:.1f} before)."

_NOTES = {
    "python": """\
Here each record has its id, its time and its place in the job. If a function raises, the job knows the record. By hand
a function works on whole frames, and has none of this. So this ratio has no bound.
""",
    "keyed": """\
Both sides give a result for each record. Spark has no operator for this, so by hand it is a `transformWithState`. Most
of the cost is Spark's own for each key and micro-batch, and not for each record. `groupBy by hand` is
`groupBy().count()` in update mode, published by `foreachBatch`. It gives one result for each key and micro-batch, so it
does less work.
""",
}

_ROCKETMQ = """\
## RocketMQ Streams

A search of the documentation, issues and articles of RocketMQ Streams found no figures in records a second for any of
these jobs. An article on the version before its rewrite (segmentfault.com, 1190000041453016) says "2-5 times faster
than other big data", for jobs that filter out most of their records. It gives no rate, no machine and no way to repeat
it. Figures of RocketMQ itself, the broker below, say nothing about jobs.
"""


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    before, after = results["load_before"], results["load_after"]
    alone = _ALONE if before <= LOAD_ALONE_MAX else _SHARED
    names = ("date", "processor", "cores", "kernel", "python", "java", "commit", "shares")
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in names},
        alone=alone.format(before=before, after=after, cores=results["cores"]),
        spread=RATIO_SPREAD_MAX,
    )
    parts = ["# Benchmarks of stream jobs", _MADE, introduction]
    for question in results["questions"]:
        parts += [part for part in section(question) if part]
        parts += [_NOTES[name] for name in (question["letter"],) if name in _NOTES]
    answered = {question["letter"] for question in results["questions"]}
    if missing := [letter for letter in LETTERS if letter not in answered]:
        parts.append(f"**Not measured in this run:** {', '.join(missing)}.")
    return "\n\n".join(part.strip() for part in (*parts, _ROCKETMQ)) + "\n"


def main(source: Path) -> None:
    """Write the page and its figures."""
    results = json.loads(source.read_text())
    (RESULTS / PAGE).write_text(as_markdown(results))
    save(results, RESULTS / FIGURES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="the JSON file of benchmarks.streams")
    main(parser.parse_args().source)

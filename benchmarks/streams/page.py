"""docs/results/benchmarks-streams.md: ``python -m benchmarks.streams.page FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.figures import RATIO_SPREAD_MAX
from benchmarks.report import RESULTS, section

PAGE, FIGURES = "benchmarks-streams.md", "benchmarks-streams.json"
LETTERS = ("sql", "window", "join", "keyed", "python")
LOAD_ALONE_MAX = 1.0
_MADE = "<!-- Made by `python -m benchmarks.streams.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.streams` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. One Spark session with two threads; the broker, Spark's own processes
and those of Python share the cores.

{alone}

*Here* is a job of `broker.streams` (`benchmarks/streams/here.py`), *by hand* the same job as a person would write it
in PySpark (`benchmarks/streams/hand.py`). Both read the same topics, of JSON of about 100 bytes, and publish to topics
of the same broker, through the format `tms`. In the first turn, which does not count, the numbers of messages that
they publish are compared. Each run reads a prepared topic in {shares} micro-batches; a figure is that of all but
the first, from commit to commit.

The sides take turns. A ratio is the median of the ratios turn by turn; where their middle half lies around its bound
and is wider than {spread:.0%} of it, it is no result. *Spread* is how far apart runs lie. *Server* is the broker's
processor time for each record that was read.
"""

_SHARED = (
    "**Other work ran on the machine at the time** (load {before:.1f} before and {after:.1f} after, of {cores} cores): "
    "the ratios of sides that take turns are fair\nstill, the figures themselves are too low."
)
_ALONE = "Little else ran (load {before:.1f} before)."

_NOTES = {
    "python": """\
Here each record has its id, its time and its place in the job, and one that makes a function raise is told apart from
the others. By hand a function over whole frames has none of it. So this ratio has no bound.
""",
    "keyed": """\
Both sides give a result for each record, which Spark has no operator of its own for: by hand it is a
`transformWithState`, and what it costs is mostly Spark's for each key and micro-batch, not for each record.
`groupBy by hand` is `groupBy().count()` in update mode, published by `foreachBatch`: it gives one result for each key
and micro-batch, so it does less.
""",
}

_ROCKETMQ = """\
## RocketMQ Streams

No figures of RocketMQ Streams were found, in records a second, for any of these jobs: a search of its documentation,
issues and articles gave none. An article on the line before its rewrite (segmentfault.com, 1190000041453016) says
"2-5 times faster than other big data" of jobs that filter most of what they read, without a rate, a machine or a way
to repeat it. Figures of RocketMQ itself, the broker below it, say nothing about jobs.
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
    """Write the page, and the figures that it is made of."""
    results = json.loads(source.read_text())
    (RESULTS / PAGE).write_text(as_markdown(results))
    (RESULTS / FIGURES).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="figures, as benchmarks.streams wrote them")
    main(parser.parse_args().source)

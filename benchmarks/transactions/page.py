"""docs/results/benchmarks-transactions.md: ``python -m benchmarks.transactions.page FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, section

PAGE, FIGURES = "benchmarks-transactions.md", "benchmarks-transactions.json"
LOAD_ALONE_MAX = 1.0
_MADE = "<!-- Made by `python -m benchmarks.transactions.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.transactions` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. One node with LevelDB on one core; the clients are in processes of their
own, on the other core, each client with connections of its own. Payloads have 256 bytes.

{alone}

The sides take turns. A ratio is the median of the ratios turn by turn. *Spread* is how far apart runs lie. p50 and p99
are times of one call from the client's side. *Server* is the node's processor time for each call.
"""

_SHARED = (
    "**Other work ran on the machine at the time** (load {load:.1f} before, of {cores} cores): the ratios of sides that\n"
    "take turns are fair still, the figures themselves are too low."
)
_ALONE = "Little else ran (load {load:.1f} before)."

_NOTES = {
    "rate": """\
A transaction is `client.transaction()` with one `publish`: four requests (start, publish, can-commit, commit), of
which start, commit and publish are each answered after a sync, one after the other.
""",
    "service": """\
Start, can-commit and commit without changes, by thriftpy2's client in 64 threads of two processes, the same for both.
**Tephra's server keeps nothing on disk here**, as our tests run it; ours syncs its journal at start and at commit. So
the ratio says what the journal and Python cost, not that the two do the same. The client's processes share one core.
""",
    "seen": """\
The subscriber (`client.subscriber(…, transactional=True)`) is in a process of its own and takes a fresh snapshot for
each poll. While nothing is new its poll waits at the broker. A publish of an open transaction ends that wait; then the
subscriber takes snapshots, with pauses of an eighth of the time for which that transaction holds it, 5 ms at least. A
message that the handler has before the answer to the commit arrives counts as 0 ms.

With 64 clients without a pause both cores are busy all the time. The commit's answer waits its turn in the client's
process, too, so the handler often has the message first; and a message waits until every transaction before it in the
topic has ended. That figure shows a node and clients at their limit, and has no bound.
""",
}


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    alone = _ALONE if results["load_before"] <= LOAD_ALONE_MAX else _SHARED
    names = ("date", "processor", "cores", "kernel", "python", "java", "commit")
    introduction = _INTRODUCTION.format(
        **{name: results[name] for name in names},
        alone=alone.format(load=results["load_before"], cores=results["cores"]),
    )
    parts = ["# Benchmarks of transactions", _MADE, introduction]
    if results["quick"]:
        parts.append("**A quick look with short runs: no basis for conclusions.**")
    for question in results["questions"]:
        parts += [part for part in section(question) if part]
        parts.append(_NOTES[question["letter"]])
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main(source: Path) -> None:
    """Write the page, and the figures that it is made of."""
    results = json.loads(source.read_text())
    (RESULTS / PAGE).write_text(as_markdown(results))
    (RESULTS / FIGURES).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="figures, as benchmarks.transactions wrote them")
    main(parser.parse_args().source)

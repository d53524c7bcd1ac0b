"""Write docs/results/benchmarks-transactions.md: ``python -m benchmarks.transactions.page FILE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, save, section

PAGE, FIGURES = "benchmarks-transactions.md", "benchmarks-transactions.json"
LOAD_ALONE_MAX = 1.0
_MADE = "<!-- Made by `python -m benchmarks.transactions.page`: measure anew, don't edit. -->"

_INTRODUCTION = """\
Measured by `python -m benchmarks.transactions` on {date}: {processor}, {cores} cores, Linux {kernel}, Python
{python}, Java {java}; the commit was {commit}. There is one node with LevelDB on one core. The clients run in separate
processes on the other core, and each client has its own connections. Payloads have 256 bytes.

{alone}

The sides take turns. A ratio is the median of the ratios of all turns. *Spread* is the distance between the highest and
the lowest run. p50 and p99 are times of one call, measured by the client. *Server* is the node's processor time for each
call.
"""

_SHARED = (
    "**Other work ran on the machine at the time** (load {load:.1f} before, of {cores} cores). The ratios are still\n"
    "fair, as the sides take turns. The figures themselves are too low."
)
_ALONE = "Little else ran (load {load:.1f} before)."

_NOTES = {
    "rate": """\
A transaction is `client.transaction()` with one `publish`: four requests, one after the other (start, publish,
can-commit, commit). The node answers start, publish and commit after a sync each.
""",
    "service": """\
The calls are start, can-commit and commit without changes, by thriftpy2's client in 64 threads of two processes, the
same for both. **Tephra's server keeps nothing on disk here**, as in our tests; ours syncs its journal at start and at
commit. So the ratio shows the cost of the journal and of Python, and the two servers do not do the same work. The
client's processes share one core.
""",
    "seen": """\
The subscriber (`client.subscriber(…, transactional=True)`) runs in its own process, and takes a new snapshot for each
poll. While there is no new message, its poll waits at the broker. A publish of an open transaction ends that wait. Then
the subscriber takes snapshots until the transaction has ended. It pauses between them for an eighth of the time that it
has waited for the transaction, and for 5 ms at least. If the handler has a message before the commit's answer arrives,
the message counts as 0 ms.

With 64 clients without a pause both cores are busy all the time. The commit's answer waits in the client's process,
too, so the handler often has the message first. And a message waits until every transaction before it in the topic has
ended. So this figure shows a node and clients at their limit, and has no bound.
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
    """Write the page and its figures."""
    results = json.loads(source.read_text())
    (RESULTS / PAGE).write_text(as_markdown(results))
    save(results, RESULTS / FIGURES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="the JSON file of benchmarks.transactions")
    main(parser.parse_args().source)

"""The text output of ``broker cluster``: a table of nodes, remarks about them, and a progress line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from broker.cli.output import rewrite_line, write_coloured_table, write_line

Json = Mapping[str, Any]

_COLOURS: Final = {"serving": "green", "drained": "yellow", "stopping": "yellow", "silent": "red"}
_COLUMNS: Final = (
    "NODE",
    "URL",
    "STATE",
    "VERSION",
    "SLOTS",
    "TOPICS",
    "ZOOKEEPER",
    "STORAGE",
    "CLOCK",
    "UP",
)
_UNKNOWN: Final = "?"


def write_status(status: Json) -> None:
    """Write the nodes as a table, and remarks about problems on standard error."""
    write_coloured_table(_COLUMNS, map(cells, status["nodes"]), _COLOURS, wrapped="STORAGE")
    for line in remarks(status):
        write_line(line, err=True)


def cells(row: Json) -> Sequence[str]:
    """Return a node's row of the table."""
    known = row["node"], row["url"], row["state"], row["version"]
    view = row["view"]
    if view is None:
        figures: Sequence[object] = (_UNKNOWN,) * (len(_COLUMNS) - len(known))
    else:
        figures = (
            view["slots_led"],
            view["topics_led"],
            view["zookeeper"]["contact"],
            storage_text(view["storage"]),
            "" if view["clock_skew_ms"] is None else f"{view['clock_skew_ms']:+d} ms",
            str(timedelta(seconds=int(view["uptime_s"]))),
        )
    return [str(cell) for cell in (*known, *figures)]


def storage_text(storage: Json) -> str:
    """Return a few words on how the storage answers."""
    if not storage["calls"]:
        return "no calls yet"
    # The times sort as text. If both are equal, a success followed the failure at once.
    failing = (storage["last_failure"] or "") > (storage["last_success"] or "")
    return (
        f"{'failing' if failing else 'answers'}, {storage['errors']} of {storage['calls']} failed"
    )


def remarks(status: Json) -> Iterator[str]:
    """Yield the remarks that the table has no column for."""
    for row in status["nodes"]:
        view = row["view"]
        if row["problem"] is not None:
            yield f"node {row['node']} does not answer: {row['problem']}"
        elif view is not None:
            yield from _remarks_on(row["node"], view)
    live = {row["node"] for row in status["nodes"]}
    for node in status["drained"] or ():
        if node not in live:
            yield f"node {node} is drained and not running"
    if status["contact"] != "connected":
        yield (
            f"node {status['asked']} has no contact with ZooKeeper ({status['contact']}): "
            "the table shows the nodes that it knew before"
        )
    if status["pins"] is None:
        yield f"pins and drained nodes are not known: {status['problem']}"
        return
    if status["problem"] is not None:
        yield f"pins or drained nodes that have no effect: {status['problem']}"
    if status["pins"]:
        yield f"pinned topics: {status['pins']}"


def _remarks_on(node: int, view: Json) -> Iterator[str]:
    error = view["storage"]["last_error"]
    if error is not None:
        yield f"node {node}, last error of storage at {view['storage']['last_failure']}: {error}"


class ProgressLine:
    """One line on standard error that shows progress; a terminal overwrites it, a file gets more lines."""

    def __init__(self, *, silent: bool) -> None:
        """Make the line; it writes nothing if ``silent``."""
        self._silent = silent
        self._shown = ""
        self._rewrites = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Show a text about the progress; do nothing if it is already shown."""
        if self._silent or text == self._shown:
            return
        if self._rewrites:
            rewrite_line(text.ljust(len(self._shown)))
        else:
            write_line(text, err=True)
        self._shown = text

    def end(self) -> None:
        """End the line."""
        if self._rewrites and self._shown:
            write_line(err=True)

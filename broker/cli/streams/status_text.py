"""The status of a stream job as text: a line, a sentence, and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.cli.command.output import size_text

if TYPE_CHECKING:
    from broker.streams.state_view import StateEntry

HEADS: Final = (
    *("END", "STATE", "BATCH", "READ/s", "PUBLISHED/s", "LAG", "WATERMARK"),
    *("LATE", "SKIPPED", "STATE ROWS", "STATE SIZE"),
)
JobStatus = Mapping[str, Any]


def line(status: JobStatus) -> str:
    """Return a job's status in one line, summed over its ends."""
    queries = status["queries"]
    lags = [query["lag_s"] for query in queries if query["lag_s"] is not None]
    batches = [query["batch"] for query in queries if query["batch"] is not None]
    parts = (
        f"{status['job']} {status['state']}",
        f"batch {max(batches)}" if batches else "no batch yet",
        f"read {sum(query['read_per_s'] for query in queries):,.0f}/s",
        f"published {sum(query['published_per_s'] for query in queries):,.0f}/s",
        f"lag {_lag(max(lags, default=None)) or 'unknown'}",
        f"late {sum(query['late'] for query in queries):,}",
        f"skipped {sum(query['skipped'] for query in queries):,}",
        f"state {size_text(sum(query['state_bytes'] for query in queries))}",
    )
    return "  ".join(parts)


def head(status: JobStatus, now_ms: int) -> str:
    """Return a job's state as a sentence."""
    age_s = max(0, now_ms - status["told_ms"]) // 1000
    process = f"process {status['pid']} on {status['host']}"
    match status["state"]:
        case "gone":
            return (
                f"{status['job']} is gone: {process} does not exist any more; its last status is {age_s:,} s old. "
                "Run the job again: it continues"
            )
        case "died":
            return f"{process} ended {age_s:,} s ago: {status['error']}"
        case "stopped" | "ended":
            return f"{status['job']} {status['state']} {age_s:,} s ago ({process})"
        case state:
            return f"{status['job']} is {state}: {process}, status {age_s:,} s old"


def rows(status: JobStatus) -> Sequence[Sequence[str]]:
    """Return a row for each end, with the columns of ``HEADS``."""
    return [_row(query, has_process=status["state"] == "running") for query in status["queries"]]


def _row(query: JobStatus, *, has_process: bool) -> Sequence[str]:
    state = "runs" if query["is_running"] and has_process else "does not run"
    return (
        query["name"],
        "died" if query["error"] else state,
        "" if query["batch"] is None else str(query["batch"]),
        f"{query['read_per_s']:,.1f}",
        f"{query['published_per_s']:,.1f}",
        _lag(query["lag_s"]),
        query["watermark"] or "",
        f"{query['late']:,}",
        f"{query['skipped']:,}",
        f"{query['state_rows']:,}",
        size_text(query["state_bytes"]),
    )


def _lag(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{lag_s:,.1f} s"


STATE_HEADS: Final = ("OPERATOR", "KEY", "WINDOW", "KEPT")


def state_rows(entries: Sequence[StateEntry]) -> Sequence[Sequence[str]]:
    """Return a row for each entry, with the columns of ``STATE_HEADS``."""
    return [
        (each.operator, _text(each.key), _window(each.window), _fields(each.kept))
        for each in entries
    ]


def _window(window: Mapping[str, str] | None) -> str:
    return "" if window is None else f"{window['start']} to {window['end']}"


def _fields(kept: Any) -> str:
    if isinstance(kept, dict):
        return ", ".join(f"{name}={_text(value)}" for name, value in kept.items())
    return _text(kept)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

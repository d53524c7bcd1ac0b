"""The metrics of a rowlog's process, and their text for Prometheus. Neither needs a package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

_HELP = {
    "puts": ("counter", "Messages put by this process."),
    "processed": ("counter", "Tries after which a message was done."),
    "retries": ("counter", "Tries that failed."),
    "dead": ("counter", "Messages that became dead letters in this process."),
    "wakeups": ("counter", "Wake-ups that this process received."),
    "scans": ("counter", "Scans of the index."),
    "scan_seconds": ("counter", "Time of these scans, seconds."),
    "listener_seconds": ("counter", "Time that listeners took, seconds."),
    "orphans_removed": ("counter", "Index entries without a message that were removed."),
    "entries_restored": ("counter", "Index entries that a sweep put back."),
    "contentions": ("counter", "Messages that another process or call had in work."),
    "open_messages": ("gauge", "Open messages, counted up to a limit."),
    "oldest_open_seconds": ("gauge", "Age of the oldest open message, seconds."),
    "dead_messages": ("gauge", "Dead letters."),
    "rows_in_work": ("gauge", "Rows that wait or are in work in this process."),
    "leads": (
        "gauge",
        "1 if this process is the processor; of a spread rowlog, how many subscriptions it processes.",
    ),
}


class Figures:
    """Counters and gauges of one rowlog, by subscription."""

    def __init__(self, rowlog: str) -> None:
        """Begin at zero."""
        self._rowlog = rowlog
        self.values: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, subscription: str = "", by: float = 1) -> None:
        """Add to a counter or a gauge."""
        assert name in _HELP, name
        self.values[name, subscription] += by

    def set(self, name: str, subscription: str, value: float) -> None:
        """Set a gauge."""
        assert name in _HELP, name
        self.values[name, subscription] = value

    def tried(self, subscription: str, seconds: float, *, is_done: bool) -> None:
        """Count a try."""
        self.add("processed" if is_done else "retries", subscription)
        self.add("listener_seconds", subscription, seconds)

    def died(self, subscription: str) -> None:
        """Count a dead letter."""
        self.add("dead", subscription)

    def text(self) -> str:
        """Return all metrics in Prometheus's text format."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        for name, (kind, help_text) in _HELP.items():
            found = {key[1]: value for key, value in self.values.items() if key[0] == name}
            if not found:
                continue
            full = f"broker_rowlog_{name}" + ("_total" if kind == "counter" else "")
            yield f"# HELP {full} {help_text}"
            yield f"# TYPE {full} {kind}"
            for subscription, value in sorted(found.items()):
                labels = (
                    f'rowlog="{_escaped(self._rowlog)}",subscription="{_escaped(subscription)}"'
                )
                yield f"{full}{{{labels}}} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

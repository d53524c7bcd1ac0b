"""What a rowlog's process counts, and the text that Prometheus reads. No package is needed for either."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

_HELP = {
    "puts": ("counter", "Messages put by this process."),
    "processed": ("counter", "Tries that were done."),
    "retries": ("counter", "Tries that failed."),
    "dead": ("counter", "Messages that died here."),
    "wakeups": ("counter", "Wake-ups that came."),
    "scans": ("counter", "Scans of the index."),
    "scan_seconds": ("counter", "Time of these scans."),
    "listener_seconds": ("counter", "Time that listeners took."),
    "orphans_removed": ("counter", "Index entries removed that had no message."),
    "entries_restored": ("counter", "Index entries that a sweep put back."),
    "contentions": ("counter", "Messages that were in work elsewhere."),
    "open_messages": ("gauge", "Open messages, as far as they were counted."),
    "oldest_open_seconds": ("gauge", "Age of the oldest open message."),
    "dead_messages": ("gauge", "Dead letters."),
    "rows_in_work": ("gauge", "Rows that wait or are in work in this process."),
    "leads": (
        "gauge",
        "1 if this process is the processor; of a spread rowlog, how many subscriptions it processes.",
    ),
}


class Figures:
    """Sums and levels of one rowlog, by subscription."""

    def __init__(self, rowlog: str) -> None:
        """Begin at zero."""
        self._rowlog = rowlog
        self.values: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, subscription: str = "", by: float = 1) -> None:
        """Raise a sum."""
        assert name in _HELP, name
        self.values[name, subscription] += by

    def set(self, name: str, subscription: str, value: float) -> None:
        """Set a level."""
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
        """Return all of it in Prometheus's text format."""
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

"""Read and apply ``differences.toml``, the list of intended differences from the original.

If the two answers to a request differ, one entry must name the request and describe both answers in every part in which
they differ. Each entry names its source. An entry or pattern that covers no request is an error, because it would hide
the next real difference.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.script import Exchange, View

FILE = Path(__file__).with_name("differences.toml")
RIGHT = "(right)"

Part = int | bool | str


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry. ``requests`` are names with ``*``; a part that begins with ``~`` is a pattern."""

    name: str
    source: str
    requests: tuple[str, ...]
    original: Mapping[str, Part]
    ours: Mapping[str, Part]

    def names(self, request: str) -> list[str]:
        """Return the patterns of this entry that match a request."""
        return [pattern for pattern in self.requests if _fits(pattern, request)]

    def explains(self, original: Exchange, ours: Exchange) -> bool:
        """Return whether this entry describes both answers and all their differences."""
        return (
            {*differing(original.view, ours.view)} <= {*self.original, *self.ours}
            and _are(self.original, original)
            and _are(self.ours, ours)
        )


@dataclass(slots=True)
class Differences:
    """All entries, and the patterns that matched a difference."""

    entries: tuple[Difference, ...]
    used: set[tuple[str, str]] = field(default_factory=set)

    def explain(self, request: str, original: Exchange, ours: Exchange) -> bool:
        """Return whether the answers are equal, or an entry describes their difference."""
        if not differing(original.view, ours.view):
            return True
        for entry in self.entries:
            patterns = entry.names(request)
            if patterns and entry.explains(original, ours):
                self.used |= {(entry.name, pattern) for pattern in patterns}
                return True
        return False

    def unused(self) -> list[str]:
        """Return the patterns that no request needed."""
        return [
            f"{entry.name}: {pattern}"
            for entry in self.entries
            for pattern in entry.requests
            if (entry.name, pattern) not in self.used
        ]


def differing(original: View, ours: View) -> list[str]:
    """Return the parts in which two answers differ."""
    return [part for part in View._fields if getattr(original, part) != getattr(ours, part)]


def load(path: Path = FILE) -> Differences:
    """Read the file of differences."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["difference"]
    read = tuple(
        Difference(
            name=entry["name"],
            source=entry["source"],
            requests=tuple(entry["requests"]),
            original=entry["original"],
            ours=entry["ours"],
        )
        for entry in entries
    )
    for entry in read:
        assert {*entry.original} == {*entry.ours}, (
            f"{entry.name}: both sides must have the same parts"
        )
        unknown = {*entry.original, *entry.ours} - {*View._fields}
        assert not unknown, f"{entry.name}: unknown parts {unknown}"
        assert entry.source.strip(), f"{entry.name}: the source is empty"
    return Differences(read)


def _fits(pattern: str, request: str) -> bool:
    return (
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), request, re.DOTALL) is not None
    )


def _are(wanted: Mapping[str, Part], exchange: Exchange) -> bool:
    return all(_is(part, getattr(exchange.view, name), exchange) for name, part in wanted.items())


def _is(wanted: Part, found: Part, exchange: Exchange) -> bool:
    if wanted == RIGHT:
        return exchange.expected is not None and found == exchange.expected
    if isinstance(wanted, str) and wanted.startswith("~"):
        return isinstance(found, str) and re.fullmatch(wanted[1:], found, re.DOTALL) is not None
    return wanted == found

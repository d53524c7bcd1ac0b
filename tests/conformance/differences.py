"""The differences that are meant: ``differences.toml``, read and applied.

A request whose answers differ must be covered by one entry that names it and describes both answers in
every part in which they differ. An entry says where it comes from, and an entry, or a pattern of one,
that covers nothing is an error: it would hide the next real difference.
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
        """The patterns of this entry that name a request."""
        return [pattern for pattern in self.requests if _fits(pattern, request)]

    def explains(self, original: Exchange, ours: Exchange) -> bool:
        """Whether both answers are as this entry says, and differ in nothing else."""
        return (
            {*differing(original.view, ours.view)} <= {*self.original, *self.ours}
            and _are(self.original, original)
            and _are(self.ours, ours)
        )


@dataclass(slots=True)
class Differences:
    """All entries, and which of their patterns were needed."""

    entries: tuple[Difference, ...]
    used: set[tuple[str, str]] = field(default_factory=set)

    def explain(self, request: str, original: Exchange, ours: Exchange) -> bool:
        """Whether the answers are equal, or differ as an entry says."""
        if not differing(original.view, ours.view):
            return True
        for entry in self.entries:
            patterns = entry.names(request)
            if patterns and entry.explains(original, ours):
                self.used |= {(entry.name, pattern) for pattern in patterns}
                return True
        return False

    def unused(self) -> list[str]:
        """The patterns that no request needed."""
        return [
            f"{entry.name}: {pattern}"
            for entry in self.entries
            for pattern in entry.requests
            if (entry.name, pattern) not in self.used
        ]


def differing(original: View, ours: View) -> list[str]:
    """The parts in which two answers differ."""
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
        assert {*entry.original} == {*entry.ours}, f"{entry.name}: both sides tell the same parts"
        unknown = {*entry.original, *entry.ours} - {*View._fields}
        assert not unknown, f"{entry.name}: there is no {unknown}"
        assert entry.source.strip(), f"{entry.name}: where does it come from?"
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

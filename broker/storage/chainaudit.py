"""Putting verified pages together: the whole chain of a log, its edits, and proofs that were kept elsewhere.

This module does no I/O: the caller gives the pages in order (chainproof.py), from this process or from a node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from broker.model import LOG_KEY_MIN, LogKey, log_key_after
from broker.storage.chainpage import ChainPage, ChainProblem, RolledEntry
from broker.storage.chainproof import Anchor, Stretch
from broker.storage.entry import Range, merged
from broker.storage.hashchain import ChainRecord, Kind
from broker.storage.head import PageState


class ChainAudit:
    """The verification of one log."""

    def __init__(self, *, is_from_floor: bool = True) -> None:
        """Begin before the first page. ``is_from_floor``: the pages begin at the log's floor."""
        self.problems: list[ChainProblem] = []
        self.pages = self.entries = self.messages = self.uncovered = 0
        self.first: LogKey | None = None
        """The first id that the chain covers, among the pages given."""
        self.end: Anchor | None = None
        self.ends: list[Anchor] = []
        """The chain at the end of each page."""
        self._is_from_floor = is_from_floor
        self._before: ChainPage | None = None
        self._rolls: dict[int, tuple[ChainRecord, bool]] = {}
        self._floors: list[LogKey] = []
        self._edited: list[tuple[LogKey, RolledEntry]] = []

    def wrong(self, page: LogKey, first: LogKey, last: LogKey, what: str) -> None:
        """Add a problem."""
        self.problems.append(ChainProblem(page, first, last, what))

    def take(self, page: ChainPage) -> None:
        """Take the next page."""
        before, self._before = self._before, page
        self.pages += 1
        self.entries += page.entries
        self.messages += page.messages
        self.uncovered += page.uncovered
        self.problems += page.problems
        if page.state is PageState.GONE and not page.chain:
            return
        if before is not None and before.chain:
            self._follow(before, page)
        if not page.chain:
            return
        if self.first is None:
            self.first = page.key if page.begins is None else log_key_after(page.begins)
        elif page.begins is not None:
            self.wrong(page.key, page.key, page.pointer, "the chain begins again in this page")
        for number, record in page.records:
            self._take_record(number, record)
        self._edited += [(page.key, each) for each in page.edited]
        self.end = Anchor(page.pointer, page.chain)
        self.ends.append(self.end)

    def _follow(self, before: ChainPage, page: ChainPage) -> None:
        if page.key != log_key_after(before.pointer):
            self.wrong(page.key, before.pointer, page.key, "pages before it are missing")
        elif page.before != before.chain:
            self.wrong(
                page.key,
                page.key,
                page.pointer,
                "it does not follow the page before it: the hashes differ",
            )

    def _take_record(self, number: int, record: ChainRecord) -> None:
        if record.kind in {Kind.BEGIN, Kind.FLOOR}:
            self._floors.append(record.first)
        elif record.kind is Kind.ROLL:
            self._rolls[number] = record, False
        elif record.of in self._rolls:
            self._rolls[record.of] = self._rolls[record.of][0], True

    def differs(self, anchor: Anchor, hashes: Sequence[bytes]) -> str:
        """Return how the log differs from a place of a proof that was kept elsewhere; "" if it does not.

        ``hashes``: those that the chain has at this id now, if it lies within a page.
        """
        if self.end is None or anchor.pointer > self.end.pointer:
            return "the log ends before it: messages were removed at the end"
        if anchor.hash in hashes or anchor in self.ends:
            return ""
        return "the log up to there is not the one of the proof: it was written again"

    def finish(self, floor: LogKey) -> None:
        """Check what needs all pages: that each edit is in the chain."""
        may_have_risen = self._is_from_floor and self.end is not None and floor > LOG_KEY_MIN
        if may_have_risen and not any(each >= floor for each in self._floors):
            what = "messages before it were removed, and the chain has no record of it"
            self.wrong(floor, LOG_KEY_MIN, floor, what)
        allowed, required = self._ranges()
        for page, entry in self._edited:
            span = entry.first, entry.last
            have = _clipped(entry.ranges, span)
            may = _clipped(allowed.get(entry.pointer, ()), span)
            must = _clipped(required.get(entry.pointer, ()), span)
            if merged((*may, *have)) != merged(may):
                self.wrong(page, *span, "it is rolled back, and the chain has no record of it")
            if merged((*have, *must)) != merged(have):
                self.wrong(page, *span, "its rollback is in the chain, and was taken away")

    def _ranges(self) -> tuple[dict[int, list[Range]], dict[int, list[Range]]]:
        allowed: dict[int, list[Range]] = {}
        required: dict[int, list[Range]] = {}
        for record, is_done in self._rolls.values():
            for pointer in record.pointers:
                allowed.setdefault(pointer, []).append((record.first, record.last))
                if is_done:
                    required.setdefault(pointer, []).append((record.first, record.last))
        return allowed, required


async def audited(
    fetch: Callable[[LogKey | None], Awaitable[Stretch]],
    since: LogKey | None = None,
    tell: Callable[[ChainAudit], None] = lambda _: None,
) -> ChainAudit:
    """Verify a log from ``since`` on (None: from its floor). ``fetch`` returns a stretch of its pages.

    While a node writes to the log, a rollback may come between two reads. So problems count that two readings show.
    ``tell`` is called after each stretch.
    """
    first = await _audited(fetch, since, tell)
    if not first.problems:
        return first
    second = await _audited(fetch, since, tell)
    second.problems = [each for each in second.problems if each in first.problems]
    return second


async def _audited(
    fetch: Callable[[LogKey | None], Awaitable[Stretch]],
    since: LogKey | None,
    tell: Callable[[ChainAudit], None],
) -> ChainAudit:
    audit, page = ChainAudit(is_from_floor=since is None), since
    while True:
        found = await fetch(page)
        for each in found.pages:
            audit.take(each)
        tell(audit)
        if found.next is None:
            audit.finish(found.floor)
            return audit
        page = found.next


def _clipped(ranges: Sequence[Range], span: Range) -> tuple[Range, ...]:
    """Return the parts of ranges that lie in a span."""
    first, last = span
    return tuple(
        (max(low, first), min(high, last)) for low, high in ranges if low <= last and high >= first
    )

"""The checker that compares all reads of a log: a log never changes, so all reads must agree.

A read covers a range of ids: a row that it does not show there is not in the log. So two reads agree
where their ranges overlap, for any readers and times. One pass finds a difference::

    shown       ids that any read has shown           a read must show those in its range,
                                                      or they are missing in it
    covered     ranges that reads have covered        a new id must not lie in them,
                                                      or it was missing there

A row may be missing if it is below a requested floor, or may have expired. Ages are those of real time: a
message was published between its request and its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from chaos.checkers.checker import Checker
from chaos.checkers.facts import UNSURE, ShownRow, TopicFacts, TopicLife, Tried
from chaos.checkers.history_rows import ABOVE_ALL, Read, ReadRow, below
from chaos.checkers.lifetimes import NS_IN_MS
from chaos.checkers.violations import Findings, Promises, spot

EVERYTHING_MAY_GO: Final = ABOVE_ALL
END_OF_TIME_NS: Final = 1 << 63
"""A time after every publish."""


@dataclass(slots=True)
class ConsumerPosition:
    """A consumer's place: it has seen all rows of its kinds in (start, last]."""

    start: str
    last: str
    kinds: tuple[str, ...]


class Coverage(Checker):
    """Find rows that one read shows, and another read that covers them does not."""

    names = (
        "changed_read",
        "skipped",
        "backward",
        "divergence",
        "time_addressing",
        "expired_early",
        "expired_late",
    )

    def __init__(self, topic: TopicFacts, found: Findings, promises: Promises) -> None:
        """Begin without a read."""
        super().__init__(topic, found, promises)
        self._cursors: dict[int, dict[str, ConsumerPosition]] = {}
        self._farthest: dict[int, str] = {}
        self._short: dict[int, dict[str, tuple[str, int, int]]] = {}

    @override
    def read(self, read: Read, life: int) -> None:
        """Compare a read with all reads before."""
        if life == UNSURE:
            return
        log = self.topic.log(life)
        self._look_at_ages(read, log)
        start = self._follow(read, life)
        if read.has_snapshot:
            return
        for kind in read.kinds:
            rows = [row for row in read.rows if row.kind == kind]
            self._compare(read, life, kind, start, rows)
        self._look_for_short_lived(read, life)

    # One kind of rows, compared with the reads before.

    def _compare(self, read: Read, life: int, kind: str, start: str, rows: list[ReadRow]) -> None:
        log = self.topic.log(life)
        shown, covered = log.shown[kind], log.covered[kind]
        low = max(start, self._not_owed(read, log, kind))
        known = 0
        fresh = []
        for row in rows:
            if shown.get(row.id) is None:
                fresh.append(row)
            elif low < row.id <= read.through:
                known += 1
        if low < read.through and shown.count(low, read.through) > known:
            self._find_missing(read, log, kind, low)
        for row in fresh:
            self._take(read, life, kind, row)
        covered.add(max(read.after, low), read.through)

    def _find_missing(self, read: Read, log: TopicLife, kind: str, low: str) -> None:
        ids = {row.id for row in read.rows}
        for message_id, shown in log.shown[kind].between(low, read.through):
            if message_id not in ids:
                self._missing(read, message_id, shown)

    def _missing(self, read: Read, message_id: str, shown: ShownRow) -> None:
        call = read.call
        tried = self.topic.of_payload(shown.payload)
        detail = spot(
            message_id,
            payload=shown.payload,
            missing_for=call.process,
            covering=(read.after, read.through),
        )
        if self._is_aged(read, tried):
            name = "expired_early"
        elif call.asked.get("cursor"):
            name = "skipped"
        else:
            name = "changed_read" if call.asked.get("time") is None else "time_addressing"
        self.found.add(name, detail, call.ended)
        if call.node and shown.node and call.node != shown.node:
            detail = spot(message_id, shown_by=shown.node, not_by=call.node)
            self.found.add("divergence", detail, call.ended)

    def _take(self, read: Read, life: int, kind: str, row: ReadRow) -> None:
        """Add a row that no read has shown before."""
        log, call = self.topic.log(life), read.call
        tried = self.topic.of_payload(row.payload)
        if tried is not None and tried.ttl_ms is not None:
            ends_ns = tried.tried_ns + tried.ttl_ms * NS_IN_MS
            self._short.setdefault(life, {}).setdefault(row.id, (kind, tried.tried_ns, ends_ns))
            return
        assert call.ended_ns is not None
        log.shown[kind].put(row.id, ShownRow(row.payload, call.node, call.ended_ns))
        if row.id <= max(log.lives_after[kind], below(log.floor) if log.floor else ""):
            return
        if self._was_old_news(read, tried):
            return
        if log.covered[kind].cover(row.id):
            detail = spot(row.id, payload=row.payload, shown_to=call.process, not_earlier=True)
            self.found.add("changed_read", detail, call.ended)
        if row.id <= self._farthest.get(life, ""):
            self._passed_over(read, life, kind, row)

    def _was_old_news(self, read: Read, tried: Tried | None) -> bool:
        """True if the row may have expired when this read showed it first.

        A long session may answer late, so other reads need not have shown the row.
        """
        gone_ns = self._gone_ns(read)
        return tried is not None and gone_ns is not None and tried.tried_ns <= gone_ns

    def _passed_over(self, read: Read, life: int, kind: str, row: ReadRow) -> None:
        its_own = read.call.asked.get("cursor")
        for name, cursor in self._cursors[life].items():
            has_passed = kind in cursor.kinds and cursor.start < row.id <= cursor.last
            if has_passed and name != its_own:
                detail = spot(name, row=row.id, payload=row.payload, went_to=cursor.last)
                self.found.add("skipped", detail, read.call.ended)

    # Consumers.

    def _follow(self, read: Read, life: int) -> str:
        """Judge a consumer's place, and return the id after which its read must show all rows."""
        name = read.call.asked.get("cursor")
        if name is None or read.has_snapshot:
            return read.after
        cursors = self._cursors.setdefault(life, {})
        cursor = cursors.setdefault(name, ConsumerPosition(read.after, read.after, read.kinds))
        start, went_to = min(cursor.last, read.after), cursor.last
        for row in read.rows:
            if row.id <= went_to:
                detail = spot(name, earlier=went_to, later=row.id)
                self.found.add("backward", detail, read.call.ended)
            went_to = max(went_to, row.id)
        if read.rows:
            cursor.last = went_to
            self._farthest[life] = max(self._farthest.get(life, ""), went_to)
        return start

    # Ages.

    def _look_at_ages(self, read: Read, log: TopicLife) -> None:
        """Find rows that had expired when the read began."""
        late_ms = self.promises.late_ms
        if late_ms is None or read.call.asked.get("at_ms") is None:
            return
        for row in read.rows:
            tried = self.topic.of_payload(row.payload)
            life_ms = self.topic.life_ms(tried, longest=True)
            born_ns = self._born_by(row, tried, log)
            if life_ms is None or born_ns is None:
                continue
            age_ms = (read.call.invoked_ns - born_ns) // NS_IN_MS
            if age_ms > life_ms + late_ms:
                detail = spot(row.id, payload=row.payload, age_ms=age_ms, life_ms=life_ms)
                self.found.add("expired_late", detail, read.call.ended)

    @staticmethod
    def _born_by(row: ReadRow, tried: Tried | None, log: TopicLife) -> int | None:
        if tried is not None and tried.acked >= 0 and not tried.is_stored:
            return tried.acked_ns
        shown = log.shown[row.kind].get(row.id)
        return None if shown is None else shown.shown_ns

    def _not_owed(self, read: Read, log: TopicLife, kind: str) -> str:
        """Return the id up to which rows may be missing now."""
        gone_ns = self._gone_ns(read)
        if gone_ns is not None and self.promises.early_ms is None:
            return EVERYTHING_MAY_GO
        if gone_ns is not None:
            self._age(log, kind, gone_ns)
        return max(log.lives_after[kind], below(log.floor) if log.floor else "")

    def _gone_ns(self, read: Read) -> int | None:
        """Return the latest publication time of messages that this read need not show any more."""
        horizon_ns = self.topic.lifetimes.horizon_of(read.call)
        if horizon_ns is None:
            return None
        early_ms = self.promises.early_ms
        return END_OF_TIME_NS if early_ms is None else horizon_ns + early_ms * NS_IN_MS

    def _age(self, log: TopicLife, kind: str, gone_ns: int) -> None:
        while (message_id := log.shown[kind].following(log.lives_after[kind])) is not None:
            shown = log.shown[kind].get(message_id)
            tried = self.topic.of_payload(shown.payload if shown is not None else None)
            if tried is not None and tried.tried_ns > gone_ns:
                break
            log.lives_after[kind] = message_id

    def _is_aged(self, read: Read, tried: Tried | None) -> bool:
        """True if expiry may explain a missing row: half of its life is over."""
        life_ms = self.topic.life_ms(tried)
        if tried is None or life_ms is None or read.call.ended_ns is None:
            return False
        return 2 * (read.call.ended_ns - tried.tried_ns) >= life_ms * NS_IN_MS

    def _look_for_short_lived(self, read: Read, life: int) -> None:
        """Judge the messages with a ``ttl`` of their own, one by one; few of them live at a time."""
        call, short = read.call, self._short.get(life)
        if not short or self.promises.early_ms is None or call.ended_ns is None:
            return
        ids = {row.id for row in read.rows}
        floor = self.topic.log(life).floor
        gone_ns = self._gone_ns(read)
        for message_id, (kind, tried_ns, ends_ns) in list(short.items()):
            is_gone = gone_ns is not None and tried_ns <= gone_ns
            if is_gone or call.ended_ns >= ends_ns - self.promises.early_ms * NS_IN_MS:
                del short[message_id]
            elif kind in read.kinds and max(read.after, floor) < message_id <= read.through:
                if message_id in ids:
                    continue
                left_ms = (ends_ns - call.ended_ns) // NS_IN_MS
                detail = spot(message_id, missing_for=call.process, left_ms=left_ms)
                self.found.add("expired_early", detail, call.ended)

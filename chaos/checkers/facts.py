"""What is known of one topic while its history goes by: what was tried, and what was shown.

A topic may be deleted and made anew; each **life** has a log of its own. The life is the generation where
the process knows it. Otherwise it follows from the deletes: a call belongs to a life if no delete can
have happened while it was under way::

    delete ok    ──────┤                 ├──────        lives 1, 2, 3
    call               ├──┤   life 2
    call          ├────┤                                nobody knows: nothing is asked of its place

A delete of unknown outcome may happen at any later moment, until a create shows that it has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from chaos.checkers.fates import Fates
from chaos.checkers.history_rows import INLINE, REFERENCE, ROW_DIGITS, STORED, plain
from chaos.checkers.lifetimes import TopicLifetimes
from chaos.checkers.tables import Tables, ValueTable
from chaos.history import Operation

UNSURE: Final = -1
NS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


class Tried(NamedTuple):
    """A payload that somebody tried to publish or to store, however often, and what came of it."""

    place: int
    """The line of the first try; the order of requests."""
    part: int
    size: int
    """The payload's place among those of its request, and how many these are."""
    tried_ns: int
    publisher: str
    number: int
    pointer: int | None = None
    ttl_ms: int | None = None
    until_ms: int | None = None
    """Until when the last try was to be done, if it said so."""
    is_stored: bool = False
    tries: int = 0
    maybe: int = 0
    """How many tries are under way or of unknown outcome."""
    acked: int = -1
    """The line of the first acknowledgement."""
    acked_ns: int = -1
    life: int = UNSURE
    told: str = ""
    """The id that was answered."""
    above: str = ""
    """The id that was answered for the first of its request."""
    id: str = ""
    """The id at which it was shown first."""
    segment: int = 0

    @property
    def may_be_there(self) -> bool:
        """Whether it was acknowledged, or nobody knows."""
        return self.acked >= 0 or self.maybe > 0


class ShownRow(NamedTuple):
    """A row of a log: what it holds, and who showed it first."""

    payload: str | None
    node: str | None = None
    shown_ns: int = 0


class FinalRow(NamedTuple):
    """A row of a log as it ended."""

    payload: str | None
    pointer: int | None


class Undone(NamedTuple):
    """A rollback: rows from ``first`` to ``last``; ``ended`` None unless it was acknowledged."""

    first: str
    last: str
    ended: int | None

    def concerns(self, row_id: str) -> bool:
        """Whether a row is meant, or the row whose reference shows a message."""
        return self.first <= row_id[:ROW_DIGITS] <= self.last


class Intervals:
    """Ranges of ids, each without its lower end, merged where they touch."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lows: list[str] = []
        self._highs: list[str] = []

    def add(self, low: str, high: str) -> None:
        """Add (low, high]."""
        if low >= high:
            return
        first, last = bisect_left(self._highs, low), bisect_right(self._lows, high)
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last], self._highs[first:last] = [low], [high]

    def cover(self, low: str, high: str) -> bool:
        """Whether one of them holds all of (low, high]."""
        place = bisect_left(self._highs, high)
        return low >= high or (place < len(self._highs) and self._lows[place] <= low)

    def hold(self, identifier: str) -> bool:
        """Whether an id lies in one of them."""
        place = bisect_left(self._highs, identifier)
        return place < len(self._highs) and self._lows[place] < identifier


class TopicLife:
    """One life of a topic, as reads showed it."""

    def __init__(self, tables: Tables) -> None:
        """Begin where nothing was shown."""
        kinds = (INLINE, REFERENCE, STORED)
        self.shown: dict[str, ValueTable[ShownRow]] = {
            kind: tables.table(ShownRow._make) for kind in kinds
        }
        self.covered = {kind: Intervals() for kind in kinds}
        self.lives_after = dict.fromkeys(kinds, "")
        """Ids up to here may have expired."""
        self.floors: dict[int, str] = {}
        """Floors that were asked for, by the line of the asking, unless refused."""
        self.final: ValueTable[FinalRow] | None = None
        self.final_kinds: set[str] = set()
        self.final_floor = ""
        self.final_ns = 0

    @property
    def floor(self) -> str:
        """Rows below it may be missing."""
        return max(self.floors.values(), default="")


class TopicLives:
    """Says to which life of a topic a call belongs."""

    def __init__(self) -> None:
        """Begin before the first create."""
        self._done = 0
        """The last life that has certainly ended."""
        self._deletes: dict[int, int] = {}
        """Deletes that are under way or unknown, by the line of the asking: the life that they end."""
        self._begun: dict[int, int] = {}
        self._gone: set[int] = set()
        self._is_gone = False
        self._deleted: dict[int, int] = {}

    @property
    def _asked(self) -> int:
        """The last life that may have ended."""
        return max(self._done, *self._deletes.values()) if self._deletes else self._done

    def began(self, call: Operation) -> None:
        """Note what was known when a call began."""
        if call.op == "create":
            self._is_gone = False
        self._begun[call.invoked] = self._done
        if self._is_gone:
            self._gone.add(call.invoked)
        if call.op == "delete":
            self._deletes[call.invoked] = call.asked.get("generation") or self._asked + 1

    def life(self, call: Operation) -> int:
        """Return the life that a call, which has just ended, belongs to."""
        generation: int = call.asked.get("generation") or 0
        if generation:
            return generation
        begun = self._begun[call.invoked]
        return begun + 1 if begun == self._asked else UNSURE

    def came_too_late(self, call: Operation) -> bool:
        """Whether a call began when the log that it names, or any, was deleted, and none was made."""
        generation: int = call.asked.get("generation") or 0
        if generation:
            return self._deleted.get(generation, call.invoked) < call.invoked
        return call.invoked in self._gone and self._is_gone

    def ended(self, call: Operation) -> None:
        """Note what a call tells of lives, after it was judged."""
        self._begun.pop(call.invoked, None)
        self._gone.discard(call.invoked)
        if call.op == "create" and call.is_ok:
            generation = call.told.get("generation") or 0
            self._end(generation - 1 if generation else self._asked)
        elif call.op == "delete" and call.outcome == "fail":
            self._deletes.pop(call.invoked, None)
        elif call.op == "delete" and call.is_ok:
            assert call.ended is not None
            self._end(self._deletes.get(call.invoked, self._done))
            self._is_gone = True
            self._deleted.setdefault(call.asked.get("generation") or 0, call.ended)

    def _end(self, life: int) -> None:
        """Note that a life is over."""
        self._done = max(self._done, life)
        late = [place for place, ends in self._deletes.items() if ends <= self._done]
        for place in late:
            del self._deletes[place]

    @property
    def is_gone(self) -> bool:
        """Whether the topic was deleted and not made again."""
        return self._is_gone


class TopicFacts:
    """The facts of one topic."""

    def __init__(self, name: str, tables: Tables, fates: Fates) -> None:
        """Begin where nothing was tried."""
        self.name = name
        self.fates = fates
        self.undone: dict[int, dict[int, Undone]] = {}
        """Rollbacks by pointer and by the line of the asking."""
        self.segment = 0
        self.tables = tables
        self.tried: ValueTable[Tried] = tables.table(Tried._make)
        self.owners: ValueTable[tuple[str]] = tables.table(tuple)
        """Ids and whose they are, as acknowledgements and reads told."""
        self.lives = TopicLives()
        self.logs: dict[int, TopicLife] = {}
        self.acked_lives: set[int] = set()
        self.lifetimes = TopicLifetimes()
        self.ttl_ms_least: int | None = None
        self.ttl_ms_most: int | None = None

    def log(self, life: int) -> TopicLife:
        """Return the log of a life."""
        if life not in self.logs:
            self.logs[life] = TopicLife(self.tables)
        return self.logs[life]

    def of_payload(self, payload: str | None) -> Tried | None:
        """Return what was tried with a payload."""
        return None if payload is None else self.tried.get(payload)

    def life_ms(self, tried: Tried | None, *, longest: bool = False) -> int | None:
        """Return how long a message lives at least, or at most; None: nobody said."""
        of_topic = self.ttl_ms_most if longest else self.ttl_ms_least
        own = None if tried is None else tried.ttl_ms
        return min((ms for ms in (of_topic, own) if ms is not None), default=None)

    def may_have_expired(self, tried: Tried | None, at_ns: int, early_ms: int | None) -> bool:
        """Whether a message may be gone at a time, ``early_ms`` before the end of its life."""
        own_ms = None if tried is None else tried.ttl_ms
        horizon_ns = self.lifetimes.horizon_ns(at_ns)
        if own_ms is None and horizon_ns is None:
            return False
        if tried is None or early_ms is None:
            return True
        if own_ms is not None and at_ns - tried.tried_ns >= (own_ms - early_ms) * NS:
            return True
        return horizon_ns is not None and tried.tried_ns <= horizon_ns + early_ms * NS

    def began(self, call: Operation) -> None:
        """Note what was asked."""
        self.lives.began(call)
        self.lifetimes.began(call)
        if call.op in ("publish", "store"):
            self._try(call)
        elif call.op in ("create", "update") and call.asked.get("ttl_s") is not None:
            ttl_ms = int(call.asked["ttl_s"]) * 1000
            self.ttl_ms_least = min(self.ttl_ms_least or ttl_ms, ttl_ms)
            self.ttl_ms_most = max(self.ttl_ms_most or ttl_ms, ttl_ms)
        elif call.op == "floor":
            self.log(call.asked["generation"]).floors[call.invoked] = plain(call.asked["floor"])

    def _try(self, call: Operation) -> None:
        asked, payloads = call.asked, call.asked["payloads"]
        number = asked.get("number") if call.op == "publish" else None
        new = Tried(
            place=call.invoked,
            part=0,
            size=len(payloads),
            tried_ns=call.invoked_ns,
            publisher=asked.get("publisher") or call.process,
            number=call.invoked if number is None else number,
            pointer=asked["number"] if call.op == "store" else asked.get("pointer"),
            ttl_ms=asked.get("ttl_ms"),
            until_ms=asked.get("until_ms"),
            is_stored=call.op == "store",
            segment=self.segment,
        )
        for index, payload in enumerate(payloads):
            tried = self.tried.get(payload) or new._replace(part=index)
            tried = tried._replace(maybe=tried.maybe + 1, tries=tried.tries + 1)
            self.tried.put(payload, tried._replace(until_ms=new.until_ms))

    def ended(self, call: Operation) -> None:
        """Note what was answered."""
        self.lifetimes.ended(call)
        if call.op in ("publish", "store"):
            self._tell(call)
        elif call.op == "floor" and call.outcome == "fail":
            del self.log(call.asked["generation"]).floors[call.invoked]

    def _tell(self, call: Operation) -> None:
        if call.outcome == "unknown":
            return
        payloads = call.asked["payloads"]
        life = self.lives.life(call)
        if call.is_ok and call.op == "publish":
            self.acked_lives.add(life)
        for index, payload in enumerate(payloads):
            tried = self.tried.get(payload)
            assert tried is not None, "a call begins before it ends"
            tried = tried._replace(maybe=tried.maybe - 1)
            if call.is_ok and tried.acked < 0:
                assert call.ended is not None
                assert call.ended_ns is not None
                told = answered(call, index) or ""
                tried = tried._replace(
                    acked=call.ended,
                    acked_ns=call.ended_ns,
                    life=life,
                    told=told,
                    above=plain(call.id or ""),
                )
            self.tried.put(payload, tried)


def answered(call: Operation, index: int) -> str | None:
    """Return the id that a publish was answered for one of its payloads, where that is told."""
    told = call.id if index == 0 else None
    if index == len(call.asked["payloads"]) - 1:
        told = told or call.told.get("last")
    return plain(told) if told else None

"""The facts of one topic up to a line of its history: attempted publishes, and shown rows.

A topic may be deleted and created again. Each **life** of the topic has its own log. If the process knows
the generation, that is the life. Otherwise the checker derives the life from the deletes. A call belongs
to a life if no delete can have happened while the call was in flight::

    delete ok    ──────┤                 ├──────        lives 1, 2, 3
    call               ├──┤   life 2
    call          ├────┤                                life unsure: its place is not checked

A delete of unknown outcome may happen at any later moment, until a create shows that it has happened. A
create of unknown outcome may happen at any later moment, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from chaos.checkers.fates import Fates
from chaos.checkers.history_rows import INLINE, LOG_KEY_DIGITS, REFERENCE, STORED, plain
from chaos.checkers.lifetimes import NS_IN_MS, TopicLifetimes
from chaos.checkers.tables import Tables, ValueTable
from chaos.history import Operation

UNSURE: Final = -1


class Tried(NamedTuple):
    """A payload, all attempts to publish or store it, and their outcome."""

    place: int
    """The line of the first attempt. It gives the order of requests."""
    part: int
    size: int
    """The payload's index in its request, and how many payloads the request has."""
    tried_ns: int
    publisher: str
    number: int
    pointer: int | None = None
    ttl_ms: int | None = None
    until_ms: int | None = None
    """The deadline of the last attempt, if it has one."""
    is_stored: bool = False
    tries: int = 0
    maybe: int = 0
    """How many attempts are in flight or of unknown outcome."""
    acked: int = -1
    """The line of the first acknowledgement."""
    acked_ns: int = -1
    life: int = UNSURE
    told: str = ""
    """The id in the answer."""
    above: str = ""
    """The answered id of the first payload of the same request."""
    id: str = ""
    """The id in the first read that showed it."""

    @property
    def may_be_there(self) -> bool:
        """True if an attempt was acknowledged, is in flight, or has an unknown outcome."""
        return self.acked >= 0 or self.maybe > 0


class ShownRow(NamedTuple):
    """A row of a log: its payload, and the node and moment of the first read that showed it."""

    payload: str | None
    node: str | None = None
    shown_ns: int = 0


class FinalRow(NamedTuple):
    """A row of a log as it ended."""

    payload: str | None
    pointer: int | None


class Undone(NamedTuple):
    """A rollback of the rows ``first`` to ``last``; ``ended`` is None until it is acknowledged."""

    first: str
    last: str
    ended: int | None

    def concerns(self, message_id: str) -> bool:
        """True if the rollback covers a row; for a stored message, its reference's row counts."""
        return self.first <= message_id[:LOG_KEY_DIGITS] <= self.last


class Intervals:
    """Ranges of ids, each without its lower end. Ranges that touch are merged."""

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

    def cover(self, identifier: str) -> bool:
        """True if an id lies in one of the ranges."""
        place = bisect_left(self._highs, identifier)
        return place < len(self._highs) and self._lows[place] < identifier


class TopicLife:
    """One life of a topic, as its reads showed it."""

    def __init__(self, tables: Tables) -> None:
        """Begin before the first read."""
        kinds = (INLINE, REFERENCE, STORED)
        self.shown: dict[str, ValueTable[ShownRow]] = {
            kind: ValueTable[ShownRow](tables) for kind in kinds
        }
        self.covered = {kind: Intervals() for kind in kinds}
        self.lives_after = dict.fromkeys(kinds, "")
        """For each kind of row: ids up to this one may have expired."""
        self.floors: dict[int, str] = {}
        """Requested floors, by the line of the request, without the refused ones."""
        self.final: ValueTable[FinalRow] | None = None
        self.final_kinds: set[str] = set()
        self.final_floor = ""
        self.final_ns = 0

    @property
    def floor(self) -> str:
        """Return the highest requested floor. Rows below it may be missing."""
        return max(self.floors.values(), default="")


class TopicLives:
    """Tells which life of a topic a call belongs to."""

    def __init__(self) -> None:
        """Begin before the first create."""
        self._done = 0
        """The last life that has certainly ended."""
        self._deletes: dict[int, int] = {}
        """The lives that deletes in flight or of unknown outcome end, by the line of the request."""
        self._begun: dict[int, int] = {}
        self._creates: set[int] = set()
        """Creates in flight or of unknown outcome, by the line of the request."""
        self._gone: set[int] = set()
        """Calls that began while the topic was deleted, if it was not created again since."""
        self._gone_at: int | None = None
        """The line of the acknowledged delete; None while the topic is there."""
        self._deleted: dict[int, int] = {}

    @property
    def _asked(self) -> int:
        """Return the last life that may have ended."""
        return max(self._done, *self._deletes.values()) if self._deletes else self._done

    def began(self, call: Operation) -> None:
        """Keep the known lives for a call that begins."""
        if call.op == "create":
            self._creates.add(call.invoked)
        self._begun[call.invoked] = self._done
        if self._gone_at is not None:
            self._gone.add(call.invoked)
        if call.op == "delete":
            self._deletes[call.invoked] = call.asked.get("generation") or self._asked + 1

    def life(self, call: Operation) -> int:
        """Return the life of a call that has just ended; UNSURE if a delete may overlap it."""
        generation: int = call.asked.get("generation") or 0
        if generation:
            return generation
        begun = self._begun[call.invoked]
        return begun + 1 if begun == self._asked else UNSURE

    def came_too_late(self, call: Operation) -> bool:
        """True if a call began after its log was deleted.

        A call that names no generation is too late only if no create can have happened since.
        """
        generation: int = call.asked.get("generation") or 0
        if generation:
            return self._deleted.get(generation, call.invoked) < call.invoked
        return call.invoked in self._gone and not self._creates

    def ended(self, call: Operation) -> None:
        """Update the lives by a create or delete that has ended, after the checkers judged it."""
        self._begun.pop(call.invoked, None)
        self._gone.discard(call.invoked)
        if call.outcome != "unknown":
            self._creates.discard(call.invoked)
        if call.op == "create" and call.is_ok:
            self._gone.clear()
            self._gone_at = None
            generation = call.told.get("generation") or 0
            self._end(generation - 1 if generation else self._asked)
        elif call.op == "delete" and call.outcome == "fail":
            self._deletes.pop(call.invoked, None)
        elif call.op == "delete" and call.is_ok:
            assert call.ended is not None
            self._end(self._deletes.get(call.invoked, self._done))
            self._gone_at = call.ended
            self._deleted.setdefault(call.asked.get("generation") or 0, call.ended)

    def _end(self, life: int) -> None:
        """Note that a life has ended."""
        self._done = max(self._done, life)
        late = [place for place, ends in self._deletes.items() if ends <= self._done]
        for place in late:
            del self._deletes[place]

    @property
    def is_gone(self) -> bool:
        """True if the topic was deleted, and no create has begun since that was not refused."""
        gone_at = self._gone_at
        return gone_at is not None and all(line < gone_at for line in self._creates)


class TopicFacts:
    """The facts of one topic."""

    def __init__(self, name: str, tables: Tables, fates: Fates) -> None:
        """Begin before the first line of the topic."""
        self.name = name
        self.fates = fates
        self.undone: dict[int, dict[int, Undone]] = {}
        """Rollbacks by pointer and by the line of the request."""
        self.tables = tables
        self.tried = ValueTable[Tried](tables)
        self.owners = ValueTable[tuple[str]](tables)
        """The payload of each id, from acknowledgements and reads."""
        self.lives = TopicLives()
        self.logs: dict[int, TopicLife] = {}
        self.acked_lives: set[int] = set()
        self.lifetimes = TopicLifetimes()
        self._ttls: dict[int, float] = {}
        """Lifetimes that creates and updates asked for, by the line of the request, without the refused ones."""
        self._ttl_ms_least = self._ttl_ms_most = math.inf

    def log(self, life: int) -> TopicLife:
        """Return the log of a life."""
        if life not in self.logs:
            self.logs[life] = TopicLife(self.tables)
        return self.logs[life]

    def of_payload(self, payload: str | None) -> Tried | None:
        """Return the attempts to publish a payload; None if there are none."""
        return None if payload is None else self.tried.get(payload)

    def life_ms(self, tried: Tried | None, *, longest: bool = False) -> int | None:
        """Return the shortest or longest life of a message; None if it has no limit."""
        of_topic = self._ttl_ms_most if longest else self._ttl_ms_least
        own = math.inf if tried is None or tried.ttl_ms is None else tried.ttl_ms
        life_ms = min(of_topic, own)
        return None if math.isinf(life_ms) else int(life_ms)

    def may_have_expired(self, tried: Tried | None, at_ns: int, early_ms: int | None) -> bool:
        """True if a message may be gone at a time. It may go ``early_ms`` before the end of its life."""
        own_ms = None if tried is None else tried.ttl_ms
        horizon_ns = self.lifetimes.horizon_ns(at_ns)
        if own_ms is None and horizon_ns is None:
            return False
        if tried is None or early_ms is None:
            return True
        if own_ms is not None and at_ns - tried.tried_ns >= (own_ms - early_ms) * NS_IN_MS:
            return True
        return horizon_ns is not None and tried.tried_ns <= horizon_ns + early_ms * NS_IN_MS

    def began(self, call: Operation) -> None:
        """Take the beginning of a call."""
        self.lives.began(call)
        self.lifetimes.began(call)
        if call.op in ("publish", "store"):
            self._try(call)
        elif call.op in ("create", "update"):
            ttl_s = call.asked.get("ttl_s")
            if ttl_s is not None or call.op == "create":
                self._ttls[call.invoked] = math.inf if ttl_s is None else int(ttl_s) * 1000
                self._weigh()
        elif call.op == "floor":
            self.log(call.asked["generation"]).floors[call.invoked] = plain(call.asked["floor"])

    def _weigh(self) -> None:
        self._ttl_ms_least = min(self._ttls.values(), default=math.inf)
        self._ttl_ms_most = max(self._ttls.values(), default=math.inf)

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
        )
        for index, payload in enumerate(payloads):
            tried = self.tried.get(payload) or new._replace(part=index)
            tried = tried._replace(maybe=tried.maybe + 1, tries=tried.tries + 1)
            self.tried.put(payload, tried._replace(until_ms=new.until_ms))

    def ended(self, call: Operation) -> None:
        """Take the end of a call."""
        self.lifetimes.ended(call)
        if call.op in ("publish", "reference") and call.is_ok:
            self.acked_lives.add(self.lives.life(call))
        if call.op in ("publish", "store"):
            self._tell(call)
        elif call.op in ("create", "update") and call.outcome == "fail":
            self._ttls.pop(call.invoked, None)
            self._weigh()
        elif call.op == "floor" and call.outcome == "fail":
            del self.log(call.asked["generation"]).floors[call.invoked]

    def _tell(self, call: Operation) -> None:
        if call.outcome == "unknown":
            return
        payloads = call.asked["payloads"]
        life = self.lives.life(call)
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
    """Return the id of one payload in a publish's answer; None if the answer does not give it."""
    told = call.id if index == 0 else None
    if index == len(call.asked["payloads"]) - 1:
        told = told or call.told.get("last")
    return plain(told) if told else None

"""Ordered lanes: what one client sends on one connection to one topic keeps its order on the way.

A node that forwards may send the same request twice, and over several connections, so requests can
overtake each other, and copies can come long after. Each carries its place::

    sender    number n of the lane, and the lowest number that has no outcome yet
    leader    lowest seen = 5     n = 4   a late copy: refused
                                  n = 5   taken
                                  n = 7   waits until 5 and 6 were answered here, or have their
                                          outcome elsewhere, which a higher lowest number tells

Refused and unknown are outcomes, too: who sent the request has been told, and nothing of it may be
stored any more. An answer after which the sender tries again (another leads, nobody leads) is none.

A leader forgets a lane when the deadlines of all its requests have passed, for then the deadline keeps
late copies out. It has room for a fixed number of lanes; beyond it new ones are refused.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Final

from broker.routing.nodeheaders import LaneTicket, Sender

LANES_MAX: Final = 100_000
LANE_SPAN_MAX: Final = 1024
"""How far a number may be above the lowest one that is not resolved."""


class SentLane:
    """The sender's side: numbers given out, and which of them have their outcome."""

    __slots__ = ("_next", "_unresolved", "lane")

    def __init__(self, lane: int) -> None:
        """Begin a lane that has this number among all of the sender's."""
        self.lane = lane
        self._next = 0
        self._unresolved: dict[int, None] = {}

    def begin(self) -> int:
        """Take the next number."""
        number, self._next = self._next, self._next + 1
        self._unresolved[number] = None
        return number

    def ticket(self, number: int) -> LaneTicket:
        """Return what to send along with a request that is not resolved yet, as of now."""
        return LaneTicket(self.lane, number, next(iter(self._unresolved)))

    @property
    def is_resolved(self) -> bool:
        """Whether everything that was sent has its outcome."""
        return not self._unresolved

    def resolved(self, number: int) -> None:
        """Note that whoever sent the request has its outcome."""
        self._unresolved.pop(number, None)


class LaneDecision(enum.Enum):
    """What to do with a request that has arrived."""

    TAKE = "take"
    WAIT = "wait"
    LATE = "late"
    FULL = "full"


class _Lane:
    __slots__ = ("answered", "attempts", "lowest", "until")

    def __init__(self) -> None:
        self.lowest = 0
        self.answered: set[int] = set()
        self.attempts: dict[int, int] = {}
        """Numbers from ``lowest`` on that were seen, and the last attempt at each."""
        self.until = 0.0


class ReceivedLanes:
    """The leader's side: the lanes of all senders. ``now`` is monotonic, in seconds."""

    def __init__(self, lanes_max: int = LANES_MAX) -> None:
        """Begin with no lane known."""
        self._lanes_max = lanes_max
        self._lanes: OrderedDict[tuple[Sender, int], _Lane] = OrderedDict()
        """Those used least recently come first."""

    def __len__(self) -> int:
        """Return how many lanes are remembered."""
        return len(self._lanes)

    def judge(
        self, sender: Sender, ticket: LaneTicket, attempt: int, *, deadline: float, now: float
    ) -> LaneDecision:
        """Return what to do with a request; ``deadline`` (monotonic) is when it is past.

        After TAKE, ``answered`` must follow once its outcome is final. After WAIT ask again whenever
        anything of the lane was answered or has arrived.
        """
        lane = self._lane((sender, ticket.lane), now)
        if lane is None or ticket.number - ticket.lowest > LANE_SPAN_MAX:
            return LaneDecision.FULL
        lane.until = max(lane.until, deadline)
        self._raise_lowest(lane, ticket.lowest)
        if ticket.number < lane.lowest or attempt < lane.attempts.get(ticket.number, 0):
            return LaneDecision.LATE
        lane.attempts[ticket.number] = attempt
        before = range(lane.lowest, ticket.number)
        return LaneDecision.TAKE if lane.answered.issuperset(before) else LaneDecision.WAIT

    def answered(self, sender: Sender, ticket: LaneTicket) -> None:
        """Note that a request was answered here for good."""
        lane = self._lanes.get((sender, ticket.lane))
        if lane is not None and ticket.number >= lane.lowest:
            lane.answered.add(ticket.number)

    def _lane(self, key: tuple[Sender, int], now: float) -> _Lane | None:
        lane = self._lanes.get(key)
        if lane is None:
            self._forget(now)
            if len(self._lanes) >= self._lanes_max:
                return None
            lane = self._lanes[key] = _Lane()
        self._lanes.move_to_end(key)
        return lane

    @staticmethod
    def _raise_lowest(lane: _Lane, lowest: int) -> None:
        if lowest <= lane.lowest:
            return
        lane.lowest = lowest
        lane.answered = {number for number in lane.answered if number >= lowest}
        lane.attempts = {n: attempt for n, attempt in lane.attempts.items() if n >= lowest}

    def _forget(self, now: float) -> None:
        """Forget lanes at the end that has not been used for longest, as far as they are over."""
        while self._lanes and next(iter(self._lanes.values())).until < now:
            self._lanes.popitem(last=False)

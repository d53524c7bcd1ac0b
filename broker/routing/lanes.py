"""Keep lanes in order: the requests of one connection to one topic reach the leader in the order of sending.

A forwarding node may send a request twice, and over several connections. So requests can overtake each other, and
copies can arrive late. Each request carries its place::

    sender    number n of the lane, and the lowest number that has no outcome yet
    leader    lowest seen = 5     n = 4   a late copy: refused
                                  n = 5   taken
                                  n = 7   waits until 5 and 6 are answered here, or a higher lowest
                                          number shows that they have their outcome

Refused and unknown are outcomes too: the client has this answer, and the request must not be stored any more. An
answer after which the sender tries again (another node leads, or no node leads) is not an outcome.

A leader forgets a lane when the deadlines of all its requests have passed: then the deadline keeps late copies out.
A leader has room for a fixed number of lanes, and refuses further ones.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from broker.model import TopicId
from broker.routing.nodeheaders import LaneTicket, Sender

LANES_MAX: Final = 100_000
LANE_SPAN_MAX: Final = 1024
"""The greatest distance of a number from the lowest unresolved one."""
LANES_OF_ONE_MAX: Final = 1000
"""The most lanes of one connection, unless more have requests that are not resolved."""
LOOKED_AT_MAX: Final = 1000
"""The most lanes that are looked at for a new one: the event loop must not wait for a look at all."""


@dataclass(slots=True, eq=False, repr=False)
class SentLane:
    """The sender's side: the numbers given out, and those of them without an outcome."""

    lane: int
    _next: int = field(default=0, init=False)
    _unresolved: dict[int, None] = field(default_factory=dict, init=False)

    def begin(self) -> int:
        """Take the next number."""
        number, self._next = self._next, self._next + 1
        self._unresolved[number] = None
        return number

    def ticket(self, number: int) -> LaneTicket:
        """Return the present ticket of an unresolved request."""
        return LaneTicket(self.lane, number, next(iter(self._unresolved)))

    @property
    def is_resolved(self) -> bool:
        """Return whether every request sent has its outcome."""
        return not self._unresolved

    def resolved(self, number: int) -> None:
        """Note that the client has the outcome of a request."""
        self._unresolved.pop(number, None)


class Lanes:
    """The lanes of the requests that this node forwards: one for each connection and topic.

    Leaders remember a lane until the deadlines of its requests have passed, and have room for a fixed number of lanes.
    So the lanes of a connection that writes to very many topics are bounded. A further topic takes over the lane, and
    its numbers, of the topic to which the connection has not written for longest.
    """

    def __init__(self) -> None:
        """Begin without a lane."""
        self._count = 0
        self._of: WeakKeyDictionary[object, OrderedDict[TopicId, SentLane]] = WeakKeyDictionary()

    def of(self, source: object, topic: TopicId) -> SentLane:
        """Return the lane of a connection and a topic. It is forgotten with the connection."""
        lanes = self._of.setdefault(source, OrderedDict())
        lane = lanes.get(topic)
        if lane is None:
            lane = lanes[topic] = self._take_idle(lanes) or self._make()
        lanes.move_to_end(topic)
        return lane

    @staticmethod
    def _take_idle(lanes: OrderedDict[TopicId, SentLane]) -> SentLane | None:
        """Take the lane of another topic, if a lane has no request in flight."""
        if len(lanes) < LANES_OF_ONE_MAX:
            return None
        resolved = next((topic for topic, lane in lanes.items() if lane.is_resolved), None)
        return None if resolved is None else lanes.pop(resolved)

    def _make(self) -> SentLane:
        self._count += 1
        return SentLane(self._count)


class LaneDecision(enum.Enum):
    """The decision about a request that has arrived."""

    TAKE = "take"
    WAIT = "wait"
    LATE = "late"
    FULL = "full"


@dataclass(slots=True, eq=False, repr=False)
class _Lane:
    until: float
    lowest: int = 0
    answered: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    """The last attempt seen of each number from ``lowest`` on."""


class ReceivedLanes:
    """The leader's side: the lanes of all senders. ``now`` is monotonic, in seconds."""

    def __init__(self, lanes_max: int = LANES_MAX) -> None:
        """Begin without a lane."""
        self._lanes_max = lanes_max
        self._lanes: dict[tuple[Sender, int], _Lane] = {}
        self._looks: list[tuple[float, tuple[Sender, int]]] = []
        """A heap with each lane once, by the time of the next look at it. The lane may end later, never earlier."""

    def __len__(self) -> int:
        """Return the number of remembered lanes."""
        return len(self._lanes)

    def judge(
        self, sender: Sender, ticket: LaneTicket, attempt: int, *, deadline: float, now: float
    ) -> LaneDecision:
        """Decide about a request with this ``deadline`` (monotonic).

        After TAKE, the caller must call ``answered`` once the outcome is final. After WAIT, it must ask again whenever
        a request of the lane was answered or has arrived.
        """
        lane = self._lane((sender, ticket.lane), deadline, now)
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
        """Note that this node gave a request its final answer."""
        lane = self._lanes.get((sender, ticket.lane))
        if lane is not None and ticket.number >= lane.lowest:
            lane.answered.add(ticket.number)

    def _lane(self, key: tuple[Sender, int], deadline: float, now: float) -> _Lane | None:
        lane = self._lanes.get(key)
        if lane is None:
            self._forget(now)
            if len(self._lanes) >= self._lanes_max:
                return None
            lane = self._lanes[key] = _Lane(deadline)
            heapq.heappush(self._looks, (deadline, key))
        return lane

    @staticmethod
    def _raise_lowest(lane: _Lane, lowest: int) -> None:
        if lowest <= lane.lowest:
            return
        lane.lowest = lowest
        lane.answered = {number for number in lane.answered if number >= lowest}
        lane.attempts = {n: attempt for n, attempt in lane.attempts.items() if n >= lowest}

    def _forget(self, now: float) -> None:
        """Forget lanes whose deadlines have all passed, whatever the deadlines of other lanes are."""
        for _ in range(LOOKED_AT_MAX):
            if not self._looks or self._looks[0][0] >= now:
                return
            key = self._looks[0][1]
            until = self._lanes[key].until
            if until < now:
                heapq.heappop(self._looks)
                del self._lanes[key]
            else:
                heapq.heapreplace(self._looks, (until, key))

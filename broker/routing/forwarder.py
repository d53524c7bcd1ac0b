"""One attempt: a request sent to one node, as that node understands it, and what came of it."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from broker.clock import Clock
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.model import TopicId
from broker.routing.deadlines import on_the_wire_ms
from broker.routing.decisions import RepeatEffect
from broker.routing.lanes import SentLane
from broker.routing.nodeheaders import NodeHeaders, Repeat, Sender
from broker.routing.peers import CONNECTIONS_MAX, STREAMS_MAX, Peers, RelayedAnswer, whole
from broker.routing.routed_calls import LEADER, MOVED, Call, LeaderSeen, Relayed
from broker.turns import CallSubject, Turns

GRACE_S: Final = 0.5
"""How long after the deadline the leader's own word on it may still come."""
READING_S: Final = 3.0
"""Silence after which a read is answered from storage instead."""
EPOCHS_MAX: Final = 100_000
TURNS_MAX: Final = 128
"""Requests to one node that are answered soon. Late ones may have the rest of its connections: thousands of topics
may hang with one region of storage, and each request that waits is held here anyway."""
READS_OF_TOPIC_MAX: Final = STREAMS_MAX // 4
"""Reads of one topic at one node, most of which wait; further ones look elsewhere, or in storage."""
LANES_OF_ONE_MAX: Final = 1000
"""Lanes of one connection, unless more have requests that are not resolved."""


class _ForwardedRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Elsewhere(NamedTuple):
    """What a 421 says: who leads, as far as its sender knows."""

    node: int | None = None
    url: str | None = None
    epoch: int | None = None

    @classmethod
    def of(cls, reply: HttpAnswer) -> Elsewhere:
        """Read the body of a 421; what can't be read is unknown."""
        try:
            told = json.loads(reply.body)
            node, url, epoch = told["node"], told["url"], told["epoch"]
        except (ValueError, TypeError, KeyError):
            return cls()
        return cls(
            node if isinstance(node, int) else None,
            url if isinstance(url, str) else None,
            epoch if isinstance(epoch, int) else None,
        )


class Lanes:
    """The lanes of all that came to this node and went to others: one for each connection and topic.

    Leaders remember a lane until the deadlines of its requests have passed, and have room for so many
    alone. So a connection that writes to very many topics gets no new lanes without end: a topic that it
    comes to takes over the lane, and the numbers, of the one that it has not written to for longest.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._count = 0
        self._of: WeakKeyDictionary[object, OrderedDict[TopicId, SentLane]] = WeakKeyDictionary()

    def of(self, source: object, topic: TopicId) -> SentLane:
        """Return the lane; it is forgotten with the connection."""
        lanes = self._of.setdefault(source, OrderedDict())
        lane = lanes.get(topic)
        if lane is None:
            lane = lanes[topic] = self._spare(lanes) or self._made()
        lanes.move_to_end(topic)
        return lane

    @staticmethod
    def _spare(lanes: OrderedDict[TopicId, SentLane]) -> SentLane | None:
        """Take the lane of another topic, one on which nothing is under way."""
        if len(lanes) < LANES_OF_ONE_MAX:
            return None
        resolved = next((topic for topic, lane in lanes.items() if lane.is_resolved), None)
        return None if resolved is None else lanes.pop(resolved)

    def _made(self) -> SentLane:
        self._count += 1
        return SentLane(self._count)


class Epochs:
    """The epochs in which topics were last seen to be led."""

    def __init__(self) -> None:
        """Know none."""
        self._seen: OrderedDict[TopicId, int] = OrderedDict()

    def get(self, topic: TopicId) -> int | None:
        """Return the epoch that is believed in."""
        return self._seen.get(topic)

    def learn(self, topic: TopicId, epoch: int | None) -> None:
        """Believe in an epoch; they only rise, until the topic is made anew elsewhere."""
        if epoch is not None:
            self._seen[topic] = epoch
            self._seen.move_to_end(topic)
            if len(self._seen) > EPOCHS_MAX:
                self._seen.popitem(last=False)


class _Reading:
    """An answer to a read, which is counted until it is closed."""

    def __init__(self, relay: RelayedAnswer, left: Callable[[], None]) -> None:
        self._relay = relay
        self._left: Callable[[], None] | None = left
        self.status = relay.status
        self.headers = relay.headers

    @property
    def ended(self) -> bool:
        return self._relay.ended

    async def chunk(self, silence_s: float | None = None) -> bytes:
        return await self._relay.chunk(silence_s)

    def close(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()
            self._relay.close()


class Forwarder:
    """Sends requests to other nodes in this node's name.

    A topic whose leader does not answer gets few turns (broker/turns.py), so that the others of that node go on.
    """

    def __init__(self, peers: Peers, clock: Clock, me: Sender, secret: str) -> None:
        """Keep the way to the others, and who this is."""
        self.lanes = Lanes()
        self.epochs = Epochs()
        self._peers = peers
        self._clock = clock
        self._me = me
        self._secret = secret
        self._turns: dict[str, Turns] = {}
        """By the node's URL."""
        self._reads: Counter[tuple[str, TopicId]] = Counter()
        """By the node's URL and the topic: how many are under way."""

    async def send(
        self, url: str, call: Call, repeat: Repeat, place: tuple[SentLane, int] | None
    ) -> Relayed:
        """Send a request and return the answer. ``place`` is its lane, and its number there.

        Raises:
            NotSent, NoAnswer: see there.
        """
        ask = self._ask(call, repeat._replace(epoch=self.epochs.get(call.topic)), place)
        if call.kind.is_reading:
            relayed = await self._read(url, call, ask)
        else:
            relayed = Relayed(await self._exchange(url, call, ask))
        seen = relayed.reply.headers.get(LEADER)
        if seen is not None:
            self.epochs.learn(call.topic, LeaderSeen.parse(seen).epoch)
        return relayed

    def _ask(
        self, call: Call, repeat: Repeat, place: tuple[SentLane, int] | None
    ) -> _ForwardedRequest:
        now = self._clock.monotonic()
        told = NodeHeaders(
            self._me,
            on_the_wire_ms(call.deadline, now, self._clock.now_ms()),
            repeat,
            None if place is None else place[0].ticket(place[1]),
        )
        headers = {**call.headers, **told.format(self._secret)}
        target = call.target
        if wait_s := call.wait_s(now):
            # Never longer than its client asked for, however late this attempt is.
            target += f"?wait={wait_s:.3f}"
        return _ForwardedRequest(call.method, target, headers, call.body)

    async def _exchange(self, url: str, call: Call, ask: _ForwardedRequest) -> HttpAnswer:
        """Send a request in its topic's turn, and return the whole answer. Raises NotSent, NoAnswer."""
        turns = self._turns.get(url)
        if turns is None:
            turns = self._turns[url] = Turns(TURNS_MAX, CONNECTIONS_MAX - TURNS_MAX)
        ends = call.deadline + GRACE_S
        try:
            turn = await turns.take(CallSubject(str(call.topic)), ends - self._clock.monotonic())
        except TimeoutError:
            raise NotSent(f"too many requests for topic '{call.topic}' are under way") from None
        is_answered = False
        try:
            reply = await self._peers.exchange(url, ask, ends - self._clock.monotonic())
            is_answered = reply.status < 500
            return reply
        finally:
            turns.give_back(turn, answered=is_answered)

    async def _read(self, url: str, call: Call, ask: _ForwardedRequest) -> Relayed:
        """Send a read; a long answer is passed on as it comes, all others are read to their end."""
        now = self._clock.monotonic()
        silence_s = min(call.wait_s(now) + READING_S, call.deadline - now)
        relay = await self._reading(url, call.topic, ask, silence_s)
        streams = relay.status == 200 and MOVED.lower() not in relay.headers
        if call.kind is RepeatEffect.POLL and streams and not relay.ended:
            return Relayed(HttpAnswer(relay.status, relay.headers, b""), relay)
        return Relayed(await whole(relay, silence_s))

    async def _reading(
        self, url: str, topic: TopicId, ask: _ForwardedRequest, silence_s: float
    ) -> RelayedAnswer:
        """Send a read and return its answer once it has begun. Raises NotSent, NoAnswer."""
        key = url, topic
        if self._reads[key] >= READS_OF_TOPIC_MAX:
            raise NotSent(f"too many reads of topic '{topic}' are under way")

        def left() -> None:
            self._reads[key] -= 1
            if not self._reads[key]:
                del self._reads[key]

        self._reads[key] += 1
        try:
            return _Reading(await self._peers.stream(url, ask, silence_s), left)
        except BaseException:
            left()
            raise


__all__ = ["Elsewhere", "Forwarder", "NoAnswer", "NotSent"]

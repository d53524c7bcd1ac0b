"""Make one attempt: send a request to one node, and return its answer."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from broker.clock import Clock
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.principal import NODE as NODE_ITSELF
from broker.routing.decisions import LEADER, MOVED, Call, LeaderSeen, Relayed
from broker.routing.lanes import Lanes, SentLane
from broker.routing.nodeheaders import Envelope, NodeHeaders, Repeat, Sender, on_the_wire_ms
from broker.routing.peers import (
    CONNECTIONS_MAX,
    STREAMS_MAX,
    Peers,
    RelayedAnswer,
    RelayedStream,
    whole,
)
from broker.shield import bare
from broker.turns import CallSubject, Turns

GRACE_S: Final = 0.5
"""The time after the deadline for which the sender still waits for the leader's answer."""
READING_S: Final = 3.0
"""After this time without bytes from the leader, this node answers a read from storage instead."""
EPOCHS_MAX: Final = 100_000
TURNS_MAX: Final = 128
"""The most requests in flight to one node for topics that answer soon. Requests to slow topics may use the rest of its
connections: one region of storage that hangs may block thousands of topics.
"""
READS_OF_TOPIC_MAX: Final = STREAMS_MAX // 4
"""The most reads of one topic at one node; most of them wait. Further reads ask another node, or storage."""
NODE: Final = "x-request-id"
"""Each answer of a node has this header. Another kind of server that listens at a node's address must not decide the
outcome of a request."""


class _ForwardedRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Epochs:
    """The last known epochs of topics."""

    def __init__(self) -> None:
        """Begin without an epoch."""
        self._seen: OrderedDict[TopicId, int] = OrderedDict()

    def get(self, topic: TopicId) -> int | None:
        """Return the last known epoch of a topic."""
        return self._seen.get(topic)

    def learn(self, topic: TopicId, epoch: int | None) -> None:
        """Note the epoch of a topic, even if it is lower than the last one.

        A topic's epochs only rise, over its generations, too. A lower one comes from a node that missed a takeover, and
        costs one refusal. Or the storage was replaced, and all epochs began anew: a node that kept the higher one would
        be refused for ever.
        """
        if epoch is not None:
            self._seen[topic] = epoch
            self._seen.move_to_end(topic)
            if len(self._seen) > EPOCHS_MAX:
                self._seen.popitem(last=False)


class Forwarder:
    """Sends requests to other nodes in this node's name.

    A topic whose leader does not answer gets few turns (broker/turns.py), so that it does not block other topics.
    """

    def __init__(self, peers: Peers, clock: Clock, me: Sender, secret: str) -> None:
        """Send through ``peers``. ``me`` and the secret identify this node."""
        self.lanes = Lanes()
        self.epochs = Epochs()
        self._peers = peers
        self._clock = clock
        self._me = me
        self._secret = secret
        self._numbers = itertools.count()
        self._turns: dict[str, Turns] = {}
        """By the node's URL."""
        self._reads: Counter[tuple[str, TopicId]] = Counter()
        """The number of reads in flight, by the node's URL and the topic."""

    async def send(
        self,
        url: str,
        call: Call,
        repeat: Repeat,
        place: tuple[SentLane, int] | None,
        begins: Callable[[], None],
    ) -> Relayed:
        """Send a request and return the answer. ``place`` is its lane, and its number there.

        A request may wait for its turn. ``begins`` is called when its turn has come; before that, nothing is sent.

        Raises:
            NotSent, NoAnswer: see broker.http.answer.
        """
        ask = self._request_for(
            url, call, repeat._replace(epoch=self.epochs.get(call.topic)), place
        )
        if call.kind.is_reading:
            begins()
            relayed = await self._read(url, call, ask)
        else:
            relayed = Relayed(await self._exchange(url, call, ask, begins))
        if NODE not in relayed.reply.headers:
            relayed.close()
            raise NoAnswer(
                f"{url} answered with status {relayed.reply.status}, but not as a node does: "
                "another kind of server may listen there"
            )
        seen = relayed.reply.headers.get(LEADER)
        if seen is not None:
            self.epochs.learn(call.topic, LeaderSeen.parse(seen).epoch)
        return relayed

    def forget_others(self, urls: Collection[str]) -> None:
        """Forget the turns at all nodes but those at ``urls``. A request in flight or in line keeps its place."""
        for url in self._turns.keys() - urls:
            del self._turns[url]

    def signed(self, url: str, target: str, seconds: float) -> dict[str, str]:
        """Return the headers for a GET of this node itself from the node at a URL."""
        now = self._clock.monotonic()
        told = NodeHeaders(
            self._me,
            on_the_wire_ms(now + seconds, now, self._clock.now_ms()),
            principal=NODE_ITSELF,
            number=next(self._numbers),
        )
        headers = {"Accept": "application/json", **told.format()}
        return Envelope(url, "GET", target).signed(headers, b"", self._secret)

    def _request_for(
        self, url: str, call: Call, repeat: Repeat, place: tuple[SentLane, int] | None
    ) -> _ForwardedRequest:
        now = self._clock.monotonic()
        node_headers = NodeHeaders(
            self._me,
            on_the_wire_ms(call.deadline, now, self._clock.now_ms()),
            repeat,
            None if place is None else place[0].ticket(place[1]),
            call.principal,
            next(self._numbers),
        )
        target = call.target
        if wait_s := call.wait_s(now):
            # A later attempt gets only the rest of the wait that the client asked for.
            target += f"{'&' if '?' in target else '?'}wait={wait_s:.3f}"
        headers = {**call.headers, **node_headers.format()}
        envelope = Envelope(url, call.method, target)
        return _ForwardedRequest(
            call.method, target, envelope.signed(headers, call.body, self._secret), call.body
        )

    async def _exchange(
        self, url: str, call: Call, ask: _ForwardedRequest, begins: Callable[[], None]
    ) -> HttpAnswer:
        """Send a request in its topic's turn, and return the whole answer. Raises NotSent, NoAnswer."""
        turns = self._turns.get(url)
        if turns is None:
            turns = self._turns[url] = Turns(TURNS_MAX, CONNECTIONS_MAX - TURNS_MAX)
        ends = call.deadline + GRACE_S
        try:
            turn = await turns.take(CallSubject(str(call.topic)), ends - self._clock.monotonic())
        except TimeoutError as error:
            raise NotSent(f"too many requests for topic '{call.topic}' are in flight") from bare(
                error
            )
        is_answered = False
        begins()
        try:
            reply = await self._peers.exchange(url, ask, ends - self._clock.monotonic())
            is_answered = reply.status < 500
            return reply
        finally:
            turns.give_back(turn, answered=is_answered)

    async def _read(self, url: str, call: Call, ask: _ForwardedRequest) -> Relayed:
        """Send a read. Return a poll's long answer as a stream, and any other answer whole."""
        now = self._clock.monotonic()
        wait_s = call.wait_s(now)
        left_s = call.deadline - now
        # Without a wait, half of the time is left for this node's own read.
        silence_s = min(wait_s + READING_S, left_s if wait_s else left_s / 2)
        relay = await self._stream(url, call.topic, ask, silence_s)
        streams = relay.status == 200 and MOVED.lower() not in relay.headers
        if call.kind is RepeatEffect.POLL and streams and not relay.ended:
            return Relayed(HttpAnswer(relay.status, relay.headers, b""), relay)
        return Relayed(await whole(relay, silence_s))

    async def _stream(
        self, url: str, topic: TopicId, ask: _ForwardedRequest, silence_s: float
    ) -> RelayedAnswer:
        """Send a read and return its answer once it has begun. Raises NotSent, NoAnswer."""
        key = url, topic
        if self._reads[key] >= READS_OF_TOPIC_MAX:
            raise NotSent(f"too many reads of topic '{topic}' are in flight")

        def left() -> None:
            self._reads[key] -= 1
            if not self._reads[key]:
                del self._reads[key]

        self._reads[key] += 1
        try:
            return RelayedStream(await self._peers.stream(url, ask, silence_s), left)
        except BaseException:
            left()
            raise

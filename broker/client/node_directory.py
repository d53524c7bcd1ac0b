"""Which node to ask: what a client knows of a cluster, without I/O.

Any node answers any request; asking the topic's leader saves a hop. Nothing is asked in advance: every
reply about a topic names its leader, and the next request goes there::

    Broker-Leader: http://b:8082;node=2;epoch=7

    heard from any node      ──> the topic is b's, unless a newer epoch is known
    connection to b lost     ──> b rests: 0.1 s, 0.2 s ... 5 s; meanwhile another node is asked, which
                                 forwards, and whose reply names the new leader
    b says Connection: close ──> b is about to stop: it rests for 1 s
    b named in a newer epoch ──> b has come back: its rest is over

    place(topic) =  its leader, unless it rests; else the node asked last, unless it rests;
                    else the next one in the circle; if all rest, the one whose rest ends first

An epoch belongs to one node, so an older one is old news and is ignored. Except when nothing else has
been heard for 30 s: then the storage behind the addresses was replaced, and epochs began anew.

Where a leader listens is taken from replies, and replies come only from nodes that the caller named or
that such nodes named. Requests carry the caller's headers (``Authorization``) there; so an https node
may name https nodes only. Behind a proxy or a load balancer these addresses may not be reachable, or
not be meant to be: ``follow=False`` stays with the addresses that the caller gave.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from broker.http.address import Address
from broker.model import TopicId

HEADER: Final = "broker-leader"
"""The header by which an answer names the leader of the topic it is about."""

REST_MIN_S: Final = 0.1
REST_MAX_S: Final = 5.0
LEAVING_S: Final = 1.0
DOUBT_S: Final = 30.0
TOPICS_MAX: Final = 100_000
NODES_MAX: Final = 512
"""A cluster has 256 instance numbers; behind them addresses may change."""


class Leader(NamedTuple):
    """Who leads a topic; ``epoch`` None: it is assigned and has not claimed yet."""

    url: str
    node: int | None
    epoch: int | None


def leader_of(header: str) -> Leader | None:
    """Read a ``Broker-Leader`` header; None if it isn't one."""
    url, *fields = (part.strip() for part in header.split(";"))
    values = dict(field.partition("=")[::2] for field in fields)
    try:
        Address.of(url)
    except ValueError:
        return None
    return Leader(url.rstrip("/"), _number(values.get("node")), _number(values.get("epoch")))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _KnownLeader:
    """What was last heard of a topic; ``doubted_s`` is since when only older epochs were heard."""

    __slots__ = ("doubted_s", "header", "leader")

    def __init__(self, header: str, leader: Leader) -> None:
        self.header = header
        self.leader = leader
        self.doubted_s: float | None = None


class _Rest(NamedTuple):
    failures: int
    until_s: float


class NodeDirectory:
    """The nodes, who leads what, and who is not to be asked just now. Times are monotonic seconds.

    Args:
        given: the addresses that the caller named, at least one.
        follow: whether leaders named by replies are asked directly.
        rng: where in the circle to begin, and the jitter of rests.
    """

    def __init__(
        self, given: Sequence[str], *, follow: bool = True, rng: random.Random | None = None
    ) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.
        self._given = len(given)
        self._circle = [url.rstrip("/") for url in given]
        self._at = self._rng.randrange(self._given)
        self._follow = follow
        self._leaders: dict[TopicId, _KnownLeader] = {}
        self._rests: dict[str, _Rest] = {}

    @property
    def several(self) -> bool:
        """Whether this is known to be a cluster, or at least more than one address."""
        return len(self._circle) > 1 or bool(self._leaders)

    def leader(self, topic: TopicId) -> Leader | None:
        """Return who was last heard to lead a topic."""
        known = self._leaders.get(topic)
        return None if known is None else known.leader

    def place(self, topic: TopicId | None, now: float, tried: Collection[str] = ()) -> str | None:
        """Return the address to ask about a topic (None: about anything).

        Without ``tried`` there always is one. With the addresses that were tried in vain just now,
        None says that every other one rests.
        """
        known = self._leaders.get(topic) if topic is not None else None
        if known is not None and self._awake(known.leader.url, now, tried):
            return known.leader.url
        for url in (*self._circle[self._at :], *self._circle[: self._at]):
            if self._awake(url, now, tried):
                return url
        if tried:
            return None
        return min(self._circle, key=lambda url: self._rests[url].until_s)

    def _awake(self, url: str, now: float, tried: Collection[str]) -> bool:
        rest = self._rests.get(url) if self._rests else None
        return (rest is None or now >= rest.until_s) and url not in tried

    def heard(self, topic: TopicId | None, source: str, header: str | None, now: float) -> None:
        """Take note of who leads, by a reply of the node at ``source``."""
        if topic is None or header is None or not self._follow:
            return
        known = self._leaders.get(topic)
        if known is not None and known.header == header:
            known.doubted_s = None
            return
        leader = leader_of(header)
        if leader is None or (source.startswith("https:") and leader.url.startswith("http:")):
            return
        if known is not None:
            if _is_old_news(known, leader, now):
                return
            if leader.epoch is None:
                leader = leader._replace(epoch=known.leader.epoch)
            elif known.leader.epoch is not None and leader.epoch > known.leader.epoch:
                self._rests.pop(leader.url, None)
            del self._leaders[topic]
        elif len(self._leaders) >= TOPICS_MAX:
            del self._leaders[next(iter(self._leaders))]
        self._leaders[topic] = _KnownLeader(header, leader)
        self._learn(leader.url)

    def _learn(self, url: str) -> None:
        if url in self._circle:
            return
        if len(self._circle) >= self._given + NODES_MAX:
            forgotten = self._circle.pop(self._given)
            self._rests.pop(forgotten, None)
            self._at = 0
        self._circle.append(url)

    def answered(self, url: str) -> None:
        """Take note of an answer: the node is there."""
        if self._rests:
            self._rests.pop(url, None)

    def lost(self, url: str, now: float) -> None:
        """Take note that a node could not be reached, or did not answer."""
        rest = self._rests.get(url)
        if rest is not None and now < rest.until_s:
            return  # Many requests may be lost with one node.
        failures = 1 if rest is None else rest.failures + 1
        pause_s = min(REST_MAX_S, REST_MIN_S * float(1 << min(failures - 1, 20)))
        self._rest(url, _Rest(failures, now + pause_s * self._rng.uniform(0.5, 1.0)))

    def leaving(self, url: str, now: float) -> None:
        """Take note that a node closes its connections, as one does that is about to stop."""
        self._rest(url, _Rest(1, now + LEAVING_S))

    def _rest(self, url: str, rest: _Rest) -> None:
        self._rests[url] = rest
        if self._circle[self._at] == url:  # And not back to it when its rest is over.
            self._at = (self._at + 1) % len(self._circle)


def _is_old_news(known: _KnownLeader, leader: Leader, now: float) -> bool:
    """Whether a leader named now is of an older epoch than the one known, and not for long."""
    newest = known.leader.epoch
    if newest is None or leader.epoch is None or leader.epoch >= newest:
        return False
    if known.doubted_s is None:
        known.doubted_s = now
    return now < known.doubted_s + DOUBT_S

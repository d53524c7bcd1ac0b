"""Choose the node for a request: the client's knowledge of a cluster, without I/O.

Any node answers any request; asking the topic's leader saves a hop. The client never asks for the leader in
advance: every reply about a topic names its leader, and the next request goes there::

    Broker-Leader: http://b:8082;node=2;epoch=7

    reply from any node          ──> b leads the topic, unless a newer epoch is known
    connection to b lost         ──> back off from b: 0.1 s, 0.2 s ... 5 s; meanwhile ask another node, which
                                     forwards, and whose reply names the new leader
    b can't settle a request     ──> likewise: it may have lost its storage
    b says Connection: close     ──> b is about to stop: back off from it for 1 s
    a newer epoch names b        ──> b has come back: end its back-off

    place(topic) =  its leader, unless backed off; else the node asked last, unless backed off;
                    else the next one in the ring of addresses; if all are backed off, the one whose
                    back-off ends first

An epoch belongs to one node. So a reply with an older epoch is stale, and the client ignores it. There is one
exception: after 30 s of nothing but older epochs, the client accepts them. Then the storage behind the
addresses was replaced, and its epochs began anew.

The client takes a leader's address from replies, and sends the caller's headers and credentials there. So an https
node may name https nodes only. And if the caller gave headers, only the nodes that the caller named may name further
ones. If such a further node names a node that is new to the client, the client asks one of the caller's nodes, whose
reply names the leader, too. With credentials, the client follows to trusted members alone: see ``credentials``. Behind a proxy or a load balancer these addresses may not be reachable, or the
caller may not want to use them: with ``follow=False`` the client uses only the caller's addresses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from broker import retries
from broker.http.answer import Address
from broker.model import TopicId
from broker.operations.parameters import LEADER_HEADER

HEADER: Final = LEADER_HEADER.lower()
"""The header in which an answer names the leader of its topic."""

BACK_OFF_MIN_S: Final = 0.1
BACK_OFF_MAX_S: Final = 5.0
LEAVING_S: Final = 1.0
DOUBT_S: Final = 30.0
TOPICS_MAX: Final = 100_000
NODES_MAX: Final = 512
"""A cluster has 256 instance numbers, and the address of a number may change."""


class Leader(NamedTuple):
    """The leader of a topic. ``epoch`` None: the node is assigned and has not claimed the topic yet."""

    url: str
    node: int | None
    epoch: int | None


def leader_of(header: str) -> Leader | None:
    """Read a ``Broker-Leader`` header; return None if it is not valid."""
    url, *fields = (part.strip() for part in header.split(";"))
    values = dict(field.partition("=")[::2] for field in fields)
    try:
        Address.of(url)
    except ValueError:
        return None
    return Leader(url.rstrip("/"), number_of(values.get("node")), number_of(values.get("epoch")))


def number_of(text: str | None) -> int | None:
    """Return the whole number in a header; None if it has none, or one of more than 19 digits."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else None


class _KnownLeader:
    """The last known leader of a topic. ``doubted_s``: since when all replies have had older epochs."""

    __slots__ = ("doubted_s", "header", "leader")

    def __init__(self, header: str, leader: Leader) -> None:
        self.header = header
        self.leader = leader
        self.doubted_s: float | None = None


class _BackOff(NamedTuple):
    failures: int
    until_s: float


class NodeDirectory:
    """The nodes, the leaders of topics, and the nodes to avoid for now. Times are monotonic seconds.

    Args:
        given: the addresses that the caller named, at least one.
        follow: whether to send requests directly to leaders that replies name.
        only_by_given: whether only the nodes in ``given`` may name an address that is new.
        trusts: returns whether the caller's credentials may go to an address that a node names, given both addresses;
            None: there are no credentials.
        rng: chooses the first address in the ring, and the jitter of back-offs.
    """

    def __init__(
        self,
        given: Sequence[str],
        *,
        follow: bool = True,
        only_by_given: bool = False,
        trusts: Callable[[str, str], bool] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - Jitter is no secret.
        self._given = len(given)
        self._ring = [url.rstrip("/") for url in given]
        self._at = self._rng.randrange(self._given)
        self._follow = follow
        self._only_by_given = only_by_given
        self._trusts = trusts
        self._leaders: dict[TopicId, _KnownLeader] = {}
        self._back_offs: dict[str, _BackOff] = {}
        self._ours: set[str] = set()

    @property
    def several(self) -> bool:
        """True if there is more than one address, or a reply has named a leader."""
        return len(self._ring) > 1 or bool(self._leaders)

    def leader(self, topic: TopicId) -> Leader | None:
        """Return the last known leader of a topic."""
        known = self._leaders.get(topic)
        return None if known is None else known.leader

    def place(self, topic: TopicId | None, now: float, tried: Collection[str] = ()) -> str | None:
        """Return the address to ask about a topic (None: about anything).

        ``tried`` are the addresses that failed just now; the result is none of them. If every other address is backed
        off, the result is None. Without ``tried`` there is always an address.
        """
        known = self._leaders.get(topic) if topic is not None else None
        if known is not None and self._is_usable(known.leader.url, now, tried):
            return known.leader.url
        for url in (*self._ring[self._at :], *self._ring[: self._at]):
            if self._is_usable(url, now, tried):
                return url
        if tried:
            return None
        return min(self._ring, key=lambda url: self._back_offs[url].until_s)

    def _is_usable(self, url: str, now: float, tried: Collection[str]) -> bool:
        back_off = self._back_offs.get(url) if self._back_offs else None
        return (back_off is None or now >= back_off.until_s) and url not in tried

    def heard(self, topic: TopicId | None, source: str, header: str | None, now: float) -> None:
        """Record the leader that a reply of the node at ``source`` names."""
        if topic is None or header is None or not self._follow:
            return
        known = self._leaders.get(topic)
        if known is not None and known.header == header:
            known.doubted_s = None
            return
        leader = leader_of(header)
        if leader is None or (source.startswith("https:") and leader.url.startswith("http:")):
            return
        if known is not None and _is_stale(known, leader, now):
            return
        if not self._may_name(source, leader.url):
            self._leaders.pop(topic, None)
            self._at = min(self._at, self._given - 1)
            return
        if known is not None:
            if leader.epoch is None:
                leader = leader._replace(epoch=known.leader.epoch)
            elif known.leader.epoch is not None and leader.epoch > known.leader.epoch:
                self._back_offs.pop(leader.url, None)
            del self._leaders[topic]
        elif len(self._leaders) >= TOPICS_MAX:
            del self._leaders[next(iter(self._leaders))]
        self._leaders[topic] = _KnownLeader(header, leader)
        self._learn(leader.url)

    def _may_name(self, source: str, url: str) -> bool:
        """Return whether the caller's headers may go to an address that the node at ``source`` names."""
        if url in self._ring:
            return True
        if self._trusts is not None:
            return self._trusts(source, url)
        return not self._only_by_given or source in self._ring[: self._given]

    def _learn(self, url: str) -> None:
        if url in self._ring:
            return
        if len(self._ring) >= self._given + NODES_MAX:
            forgotten = self._ring.pop(self._given)
            self._back_offs.pop(forgotten, None)
            self._ours.discard(forgotten)
            self._at = 0
        self._ring.append(url)

    def showed_ours(self, url: str) -> None:
        """Record that an answer from this address was by a server of this project."""
        self._ours.add(url)

    def is_ours(self, url: str) -> bool:
        """Return whether an answer from this address was by a server of this project."""
        return url in self._ours

    def answered(self, url: str) -> None:
        """Record that a node answered: it is alive."""
        if self._back_offs:
            self._back_offs.pop(url, None)

    def lost(self, url: str, now: float) -> None:
        """Record that a node could not be reached, did not answer, or could not settle a request in time."""
        back_off = self._back_offs.get(url)
        if back_off is not None and now < back_off.until_s:
            return  # One failure of a node may lose many requests; count it once.
        failures = 1 if back_off is None else back_off.failures + 1
        until_s = now + retries.jittered_s(failures, BACK_OFF_MIN_S, BACK_OFF_MAX_S, self._rng)
        self._back_off(url, _BackOff(failures, until_s))

    def leaving(self, url: str, now: float) -> None:
        """Record that a node closes its connections, as a node does before it stops."""
        self._back_off(url, _BackOff(1, now + LEAVING_S))

    def _back_off(self, url: str, back_off: _BackOff) -> None:
        self._back_offs[url] = back_off
        if self._ring[self._at] == url:  # Ask another node, also after the back-off ends.
            self._at = (self._at + 1) % len(self._ring)


def _is_stale(known: _KnownLeader, leader: Leader, now: float) -> bool:
    """Return whether a named leader has an older epoch than the known one, and such replies began recently."""
    newest = known.leader.epoch
    if newest is None or leader.epoch is None or leader.epoch >= newest:
        return False
    if known.doubted_s is None:
        known.doubted_s = now
    return now < known.doubted_s + DOUBT_S

"""What is routed, and what comes back, as values: a request and an answer without the interface's types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from broker.http.answer import HttpAnswer
from broker.model import TopicId
from broker.routing.decisions import PeerAnswer, RepeatEffect
from broker.routing.peers import RelayedAnswer

MOVED = "Broker-Moved"
"""On the answer to a poll that waited: it ends early, for another node leads from now on."""
ERROR = "broker-error"
OUTCOME = "broker-outcome"
LEADER = "broker-leader"


class Call(NamedTuple):
    """A request that the topic's leader shall answer.

    ``name`` is what it is counted as; ``target`` is its raw path and query; ``headers`` are those that
    go with it to another node. ``deadline`` is monotonic. ``source`` is the connection by which it
    came, if its order among others of that counts; it must be weakly referable. ``own_key``: the
    client sent an idempotency key. ``waits_until`` (monotonic) is how long a poll may wait; each node that
    is asked is told what is left of that.
    """

    kind: RepeatEffect
    name: str
    topic: TopicId
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    deadline: float
    source: object | None = None
    own_key: bool = False
    waits_until: float = -math.inf

    def wait_s(self, now: float) -> float:
        """Return how long it may still wait, 0 if it does not."""
        return max(self.waits_until - now, 0.0)


class Relayed(NamedTuple):
    """A leader's answer: a whole reply, or (``relay``) one whose body is still to come."""

    reply: HttpAnswer
    relay: RelayedAnswer | None = None

    @property
    def has_moved(self) -> bool:
        """Whether it is a poll's that ended early since another node leads from now on."""
        return MOVED.lower() in self.reply.headers

    @property
    def told(self) -> PeerAnswer:
        """What it says, as far as decisions need it."""
        headers = self.reply.headers
        return PeerAnswer.by_reply(
            self.reply.status, headers.get(ERROR, ""), headers.get(OUTCOME, "")
        )

    def close(self) -> None:
        """Read no further."""
        if self.relay is not None:
            self.relay.close()


class LeaderSeen(NamedTuple):
    """The header ``Broker-Leader``: ``<url>;node=<n>;epoch=<e>``, what is unknown left out."""

    url: str
    node: int | None = None
    epoch: int | None = None

    def format(self) -> str:
        """Return the header's value."""
        text = self.url
        if self.node is not None:
            text += f";node={self.node}"
        if self.epoch is not None:
            text += f";epoch={self.epoch}"
        return text

    @classmethod
    def parse(cls, text: str) -> LeaderSeen:
        """Read the header's value; what can't be read counts as unknown."""
        url, *parts = text.split(";")
        told = dict(part.strip().partition("=")[::2] for part in parts)
        return cls(url.strip(), _number(told.get("node")), _number(told.get("epoch")))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None

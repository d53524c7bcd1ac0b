"""Describe a routed request and its answer as values, without the interface's types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.http.answer import HttpAnswer
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.routing.decisions import PeerAnswer
from broker.routing.peers import RelayedAnswer

MOVED = "Broker-Moved"
"""A header of the answer to a waiting poll: the poll ends early, because another node leads now."""
ERROR = "broker-error"
OUTCOME = "broker-outcome"
LEADER = "broker-leader"
_NUMBER = re.compile("[0-9]{1,19}")
"""Node numbers and epochs have at most 63 bits."""


class Call(NamedTuple):
    """A request for the topic's leader.

    ``name`` is its name in metrics; ``target`` is its raw path and query; ``headers`` go with it to another node.
    ``deadline`` is monotonic. ``source`` is the connection from which it came, if its order among the requests of
    this connection counts; it must be weakly referable. ``own_key``: the client sent an idempotency key. A poll may
    wait until ``waits_until`` (monotonic); each node that is asked gets the time that is left.
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
        """Return the time that it may still wait, 0 if it does not wait."""
        return max(self.waits_until - now, 0.0)


class Relayed(NamedTuple):
    """A leader's answer: a whole reply, or (with ``relay``) one whose body follows."""

    reply: HttpAnswer
    relay: RelayedAnswer | None = None

    @property
    def has_moved(self) -> bool:
        """Return whether it answers a poll that ended early because another node leads now."""
        return MOVED.lower() in self.reply.headers

    @property
    def peer_answer(self) -> PeerAnswer:
        """Return the part of the answer that decisions need."""
        headers = self.reply.headers
        return PeerAnswer.by_reply(
            self.reply.status, headers.get(ERROR, ""), headers.get(OUTCOME, "")
        )

    def close(self) -> None:
        """Stop reading the body."""
        if self.relay is not None:
            self.relay.close()


class LeaderSeen(NamedTuple):
    """The header ``Broker-Leader``: ``<url>;node=<n>;epoch=<e>``, without unknown parts."""

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
        """Read the header's value. Unreadable parts count as unknown."""
        url, *parts = text.split(";")
        fields = dict(part.strip().partition("=")[::2] for part in parts)
        return cls(url.strip(), _number(fields.get("node")), _number(fields.get("epoch")))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None

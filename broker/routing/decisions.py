"""A routed request and its answer as values; and the step after an attempt to get the answer from the topic's leader.

::

    result of the attempt                       reading   keyed, rollback        others
    success, or a refusal for good              REPLY     REPLY (*)              REPLY
    421, 503 no_leader, never sent              AGAIN     AGAIN                  AGAIN
    sent, and no answer                         AGAIN     REPEAT                 UNKNOWN
    outcome_unknown                             REPLY     REPEAT, unless under   REPLY
                                                          the client's own key

AGAIN: the request was certainly not done, so look up the leader again and send the request there. REPEAT: the same,
but the request may have been done; its key, or its kind, makes a repetition harmless. UNKNOWN: answer that the
outcome is unknown.

(*) After an attempt without an answer, only a success settles the outcome. A refusal is about the later attempt
alone. If another attempt may help, this node makes it; else the outcome is unknown.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.errors import (
    BrokerError,
    Forbidden,
    NoLeader,
    NotLeader,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    UnavailableError,
)
from broker.http.answer import HttpAnswer
from broker.model import TopicId
from broker.operations.operation import RepeatEffect
from broker.operations.parameters import LEADER_HEADER
from broker.principal import NODE, Principal
from broker.routing.peers import RelayedAnswer
from broker.wire.jsontext import json_of

MOVED = "Broker-Moved"
"""A header of the answer to a waiting poll: the poll ends early, because another node leads now."""
ERROR = "broker-error"
OUTCOME = "broker-outcome"
LEADER = LEADER_HEADER.lower()
_NUMBER = re.compile("[0-9]{1,19}")
"""Node numbers and epochs have at most 63 bits."""


LOOK_AGAIN = frozenset({NoLeader.code, NotLeader.code, Forbidden.code})
"""A leader's refusals with these codes may disappear when the sender looks up the leader again. The sender has already
checked the caller's rights, so *forbidden* means that the other node does not accept this node's secret yet."""


class Call(NamedTuple):
    """A request for the topic's leader.

    ``name`` is its name in metrics; ``target`` is its raw path and query; ``headers`` go with it to another node.
    ``deadline`` is monotonic. ``source`` is the connection from which it came, if its order among the requests of
    this connection counts; it must be weakly referable. ``own_key``: the client sent an idempotency key. A poll may
    wait until ``waits_until`` (monotonic); each node that is asked gets the time that is left.
    ``principal`` is the caller; by default the node itself.
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
    principal: Principal = NODE

    def wait_s(self, now: float) -> float:
        """Return the time that it may still wait, 0 if it does not wait."""
        return max(self.waits_until - now, 0.0)


class Next(enum.Enum):
    """The step after an attempt; see the table above."""

    REPLY = "reply"
    AGAIN = "again"
    REPEAT = "repeat"
    UNKNOWN = "unknown"


class PeerAnswer(NamedTuple):
    """The part of an answer that decisions need. ``code`` is empty for a success."""

    code: str
    outcome: Outcome
    retriable: bool

    @classmethod
    def by_error(cls, error: BrokerError) -> PeerAnswer:
        """Return the answer that stands for an error of this node."""
        return cls(error.code, error.outcome, error.retriable)

    @classmethod
    def by_reply(cls, status: int, code: str, outcome: str) -> PeerAnswer:
        """Return the answer in another node's reply. An error that does not tell its outcome counts as unknown."""
        if status < 400:
            return SUCCESS
        # A definite 503, 421, 429 or 507 may be repeated; see errors.UnavailableError.
        definite = outcome == "refused"
        retriable = definite and status in (
            UnavailableError.http_status,
            NotLeader.http_status,
            QuotaExceeded.http_status,
            507,
        )
        return cls(code or BrokerError.code, "refused" if definite else "unknown", retriable)


SUCCESS = PeerAnswer("", "refused", retriable=False)


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
    """A topic's leader, as far as a node knows it. As the header ``Broker-Leader``: ``<url>;node=<n>;epoch=<e>``."""

    url: str = ""
    node: int | None = None
    epoch: int | None = None

    @classmethod
    def named_in(cls, reply: HttpAnswer) -> LeaderSeen:
        """Read the body of a 421. If it is unreadable, the leader is unknown."""
        try:
            fields = json_of(reply.body)
            node, url, epoch = fields["node"], fields["url"], fields["epoch"]
        except (ValueError, TypeError, KeyError):
            return cls()
        return cls(
            url if isinstance(url, str) else "",
            node if isinstance(node, int) else None,
            epoch if isinstance(epoch, int) else None,
        )

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


# --- Decisions ------------------------------------------------------------------------------------


def after_answer(kind: RepeatEffect, answer: PeerAnswer, *, in_doubt: bool, own_key: bool) -> Next:
    """Decide after an answer.

    Args:
        kind: the effect of repeating the request.
        answer: the answer.
        in_doubt: whether an earlier attempt may have been done.
        own_key: whether the client itself sent an idempotency key.
    """
    if not answer.code:
        return Next.REPLY
    if answer.outcome == "refused" and answer.code in LOOK_AGAIN:
        return Next.AGAIN
    if kind.is_reading:
        return Next.REPLY
    if answer.outcome == "unknown":
        repeatable = kind.is_repeatable and answer.code == OutcomeUnknown.code and not own_key
        return Next.REPEAT if repeatable else Next.REPLY
    if not in_doubt:
        return Next.REPLY
    return Next.REPEAT if answer.retriable else Next.UNKNOWN


def after_loss(kind: RepeatEffect, *, sent: bool) -> Next:
    """Decide after an attempt that got no answer."""
    if not sent or kind.is_reading:
        return Next.AGAIN
    return Next.REPEAT if kind.is_repeatable else Next.UNKNOWN


def is_final(kind: RepeatEffect, answer: PeerAnswer, *, attempt: int, own_key: bool) -> bool:
    """Return whether the sender certainly passes this answer on, so that the request has its outcome.

    The leader decides this, for lanes. It does not know whether earlier attempts left the sender in doubt, so it
    assumes that they did.
    """
    return after_answer(kind, answer, in_doubt=attempt > 1, own_key=own_key) is Next.REPLY


def outcome_unknown(why: str, *, own_key: bool) -> OutcomeUnknown:
    """Return the error for a request that may have been done; retriable under the client's own key."""
    error = OutcomeUnknown(f"It is unknown whether the request was carried out: {why}")
    return error.under_key() if own_key else error


def at_the_deadline(kind: RepeatEffect, why: str, *, in_doubt: bool, own_key: bool) -> BrokerError:
    """Return the error for a request that has no answer when its time is up."""
    if in_doubt and not kind.is_reading:
        return outcome_unknown(why, own_key=own_key)
    return NoLeader(f"No leader of the topic answered in time: {why}")

"""What to do after each attempt to get a request answered by the topic's leader.

::

    what came back                              reading   keyed, rollback        others
    success, or a refusal for good              REPLY     REPLY (*)              REPLY
    421, 503 no_leader, never sent              AGAIN     AGAIN                  AGAIN
    sent, and no answer                         AGAIN     REPEAT                 UNKNOWN
    outcome_unknown                             REPLY     REPEAT, unless under   REPLY
                                                          the client's own key

AGAIN: certainly not done, so look again who leads and send it there. REPEAT: the same, but it may have
been done, which the key, or its very nature, makes harmless. UNKNOWN: nobody can say, so say so.

(*) Once an attempt got no answer, only a success tells what became of it. A refusal is one of the later
attempt alone: where trying again may help that is done, else the outcome is unknown.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from broker.errors import (
    BrokerError,
    Forbidden,
    NoLeader,
    NotLeader,
    Outcome,
    OutcomeUnknown,
    UnavailableError,
)

LOOK_AGAIN = frozenset({NoLeader.code, NotLeader.code, Forbidden.code})
"""Codes of a leader's refusals that another look may mend. The sender has asked already whether the
caller may do this, so *forbidden* is a node that does not know this one yet."""


class RepeatEffect(enum.Enum):
    """What repeating a request does."""

    READING = "reading"
    POLL = "poll"
    """Reading that may wait, and that any node can do from storage if no leader answers."""
    KEYED = "keyed"
    """Has an effect once under its key: publish and store."""
    IDEMPOTENT = "idempotent"
    """Twice is as once: rollback."""
    ONCE = "once"
    """Must not be sent again once it may have been done: create, update, delete."""

    @property
    def is_reading(self) -> bool:
        """Whether it has no effect."""
        return self in (RepeatEffect.READING, RepeatEffect.POLL)

    @property
    def is_in_a_lane(self) -> bool:
        """Whether its order among others of one client counts."""
        return self in (RepeatEffect.KEYED, RepeatEffect.IDEMPOTENT)

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again although it may have been done."""
        return self is not RepeatEffect.ONCE


class Next(enum.Enum):
    """What follows an attempt; see the table above."""

    REPLY = "reply"
    AGAIN = "again"
    REPEAT = "repeat"
    UNKNOWN = "unknown"


class PeerAnswer(NamedTuple):
    """An answer, as far as decisions need it. ``code`` is empty for a success."""

    code: str
    outcome: Outcome
    retriable: bool

    @classmethod
    def by_error(cls, error: BrokerError) -> PeerAnswer:
        """Return what an error of this very node tells."""
        return cls(error.code, error.outcome, error.retriable)

    @classmethod
    def by_reply(cls, status: int, code: str, outcome: str) -> PeerAnswer:
        """Return what another node's reply tells; an answer without a word on its outcome is unknown."""
        if status < 400:
            return SUCCESS
        # A definite 503 and its kin may be repeated; see errors.UnavailableError.
        definite = outcome == "refused"
        retriable = definite and status in (
            UnavailableError.http_status,
            NotLeader.http_status,
            507,
        )
        return cls(code or BrokerError.code, "refused" if definite else "unknown", retriable)


SUCCESS = PeerAnswer("", "refused", retriable=False)


def after_answer(kind: RepeatEffect, told: PeerAnswer, *, in_doubt: bool, own_key: bool) -> Next:
    """Decide after an answer.

    Args:
        kind: what repeating does.
        told: the answer.
        in_doubt: whether an earlier attempt may have been done.
        own_key: whether the client itself sent an idempotency key.
    """
    if not told.code:
        return Next.REPLY
    if told.outcome == "refused" and told.code in LOOK_AGAIN:
        return Next.AGAIN
    if kind.is_reading:
        return Next.REPLY
    if told.outcome == "unknown":
        repeatable = kind.is_repeatable and told.code == OutcomeUnknown.code and not own_key
        return Next.REPEAT if repeatable else Next.REPLY
    if not in_doubt:
        return Next.REPLY
    return Next.REPEAT if told.retriable else Next.UNKNOWN


def after_loss(kind: RepeatEffect, *, sent: bool) -> Next:
    """Decide after an attempt that got no answer."""
    if not sent or kind.is_reading:
        return Next.AGAIN
    return Next.REPEAT if kind.is_repeatable else Next.UNKNOWN


def is_final(kind: RepeatEffect, told: PeerAnswer, *, attempt: int, own_key: bool) -> bool:
    """Whether the sender certainly passes this answer on, so that the request has its outcome.

    The leader's view, for lanes. It does not know whether earlier attempts left the sender in doubt,
    and takes it that they did.
    """
    return after_answer(kind, told, in_doubt=attempt > 1, own_key=own_key) is Next.REPLY


def outcome_unknown(why: str, *, own_key: bool) -> OutcomeUnknown:
    """Return the error for a request that may have been done; retriable under the client's own key."""
    error = OutcomeUnknown(f"It is unknown whether the request was carried out: {why}")
    return error.under_key() if own_key else error


def at_the_deadline(kind: RepeatEffect, why: str, *, in_doubt: bool, own_key: bool) -> BrokerError:
    """Return the error for a request that has no answer when its time is up."""
    if in_doubt and not kind.is_reading:
        return outcome_unknown(why, own_key=own_key)
    return NoLeader(f"No leader of the topic answered in time: {why}")

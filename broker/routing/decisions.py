"""Decide the next step after an attempt to get a request answered by the topic's leader.

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
from broker.operations.operation import RepeatEffect

LOOK_AGAIN = frozenset({NoLeader.code, NotLeader.code, Forbidden.code})
"""A leader's refusals with these codes may disappear when the sender looks up the leader again. The sender has already
checked the caller's rights, so *forbidden* means that the other node does not accept this node's secret yet."""


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
        # A definite 503, 421 or 507 may be repeated; see errors.UnavailableError.
        definite = outcome == "refused"
        retriable = definite and status in (
            UnavailableError.http_status,
            NotLeader.http_status,
            507,
        )
        return cls(code or BrokerError.code, "refused" if definite else "unknown", retriable)


SUCCESS = PeerAnswer("", "refused", retriable=False)


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

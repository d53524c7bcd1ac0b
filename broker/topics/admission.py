"""Check that a topic accepts a publish or a store: its properties allow it, and it is not too old."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import ne
from typing import Final

from broker.clock import Clock
from broker.errors import BadRequest, TooManyMessages, TransactionTooOld
from broker.model import POINTERS_PER_MS, PublishRequest, Topic, TransactionUse
from broker.topics import stages
from broker.topics.references import too_old
from broker.topics.settings import PublishOptions, TopicSettings

LIFETIMES_MAX: Final = 2_000
"""The most runs of messages with one lifetime in a request. Each run has an entry of its own. To build 10,000 entries
blocks the loop for 33 ms; it must never be blocked for 20."""


def check(
    topic: Topic,
    request: PublishRequest,
    options: PublishOptions,
    settings: TopicSettings,
    clock: Clock,
) -> None:
    """Refuse a request that the topic does not accept.

    Raises:
        BadRequest: the topic does not accept such a publish, or such a lifetime.
        TooManyMessages: lifetimes change too often from one message to the next.
        TransactionTooOld, PayloadsSealed: the transaction, or the stage of the store, is too old.
    """
    if len(request.ttls_s) > LIFETIMES_MAX:
        _check_lifetimes(request.ttls_s)
    # Each once: there may be 100,000, and few different ones.
    different = {options.ttl_s, *request.ttls_s}
    for ttl_s in different:
        if ttl_s is not None and not 0 < ttl_s <= topic.ttl_s:
            raise BadRequest(
                f"ttl: must be between 1 and the topic's ttl of {topic.ttl_s} seconds, not {ttl_s}."
            )
    if request.payloads and request.stages:
        # The publish that names these stages is checked when it comes.
        for stage in request.stages:
            if stages.is_over(stage, clock, settings.stage_life_s * 1000):
                raise too_old(stage)
        return
    if topic.transactions is TransactionUse.REQUIRED and request.pointer is None:
        raise BadRequest(f"Topic '{topic.id}' accepts only publishes of transactions.")
    if topic.transactions is TransactionUse.REFUSED and request.pointer is not None:
        raise BadRequest(f"Topic '{topic.id}' accepts no publishes of transactions.")
    if request.pointer is not None:
        _check_age(request.pointer, settings.transaction_life_max_s, clock.now_ms())


def _check_lifetimes(ttls_s: Sequence[int | None]) -> None:
    if sum(map(ne, ttls_s, islice(ttls_s, 1, None))) >= LIFETIMES_MAX:
        raise TooManyMessages(
            f"ttl: a request may have at most {LIFETIMES_MAX} runs of messages with lifetimes of their own. Put messages "
            "of one ttl next to each other, or send fewer at once."
        )


def _check_age(pointer: int, life_max_s: int, now_ms: int) -> None:
    check_is_pointer(pointer)
    began_ms = pointer // POINTERS_PER_MS
    if began_ms + life_max_s * 1000 <= now_ms:
        raise TransactionTooOld(
            f"Transaction {pointer} began more than {life_max_s} seconds ago, the longest life "
            "of a transaction. Abort it and begin a new one."
        )


def check_is_pointer(pointer: int) -> None:
    """Refuse a negative number: it belongs to a stage, and no transaction has it."""
    if pointer < 0:
        raise TransactionTooOld(f"{pointer} is no transaction's write pointer.")

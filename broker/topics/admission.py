"""Whether a publish or a store may be done at all, by its topic's properties and its age."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import ne
from typing import Final

from broker.errors import BadRequest, TooManyMessages, TransactionTooOld
from broker.model import POINTERS_PER_MS, PublishRequest, Topic, TransactionUse
from broker.topics import stages
from broker.topics.references import too_old
from broker.topics.settings import PublishOptions, TopicSettings

LIFETIMES_MAX: Final = 10_000
"""How many runs of messages with one lifetime a request may have. Each run has an entry of its own."""


def check(
    topic: Topic,
    request: PublishRequest,
    options: PublishOptions,
    settings: TopicSettings,
    now_ms: int,
) -> None:
    """Refuse what a topic does not take.

    Raises:
        BadRequest: the topic takes no such publish, or no such lifetime.
        TooManyMessages: lifetimes change too often from one message to the next.
        TransactionTooOld, PayloadsSealed: the transaction, or the stage that is stored into, is too old.
    """
    if len(request.ttls_s) > LIFETIMES_MAX:
        _check_lifetimes(request.ttls_s)
    for ttl_s in (options.ttl_s, *request.ttls_s):
        if ttl_s is not None and not 0 < ttl_s <= topic.ttl_s:
            raise BadRequest(
                f"ttl: must be between 1 and the topic's own, {topic.ttl_s} seconds, not {ttl_s}."
            )
    if request.payloads and request.stages:
        # Whose publish it will be is judged then.
        for stage in request.stages:
            if stages.is_over(stage, now_ms, settings.stage_life_s * 1000):
                raise too_old(stage)
        return
    if topic.transactions is TransactionUse.REQUIRED and request.pointer is None:
        raise BadRequest(f"Topic '{topic.id}' takes publishes of transactions alone.")
    if topic.transactions is TransactionUse.REFUSED and request.pointer is not None:
        raise BadRequest(f"Topic '{topic.id}' takes no publishes of transactions.")
    if request.pointer is not None:
        _check_age(request.pointer, settings.transaction_life_max_s, now_ms)


def _check_lifetimes(ttls_s: Sequence[int | None]) -> None:
    if sum(map(ne, ttls_s, islice(ttls_s, 1, None))) >= LIFETIMES_MAX:
        raise TooManyMessages(
            f"ttl: in a request {LIFETIMES_MAX} runs of messages may have lifetimes of their own. Send messages of one "
            "ttl one after the other, or fewer at once."
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
    """Refuse what no transaction can have: negative numbers are those of stages."""
    if pointer < 0:
        raise TransactionTooOld(f"{pointer} is no transaction's write pointer.")

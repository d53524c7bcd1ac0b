"""Mutants of the client's transactions. See mutants.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from broker.client import transaction_commit, transaction_fate
from broker.client.transaction_aware import TransactionAware
from broker.client.transaction_context import TransactionContext
from broker.client.transaction_fate import TransactionFate
from broker.client.transaction_undo import Undo
from broker.errors import RequestError
from broker.model import Snapshot
from broker.testing.mutants_routes import Mutant


def _unknown_publish(rollback: Any) -> Any:
    async def mutant(self: Undo) -> bool:
        self._unknown = False
        return bool(await rollback(self))

    return mutant


def _unknown_commit(_: Any) -> Any:
    def mutant(error: BaseException, *, sure: bool) -> bool:
        del error, sure
        return True

    return mutant


def _second_commit(_: Any) -> Any:
    def mutant(error: BaseException, *, sure: bool) -> bool:
        del sure
        return isinstance(error, RequestError)

    return mutant


def _unheard_pointer(fate: Any) -> Any:
    def mutant(snapshot: Snapshot, pointers: Collection[int]) -> TransactionFate:
        found: TransactionFate = fate(snapshot, pointers)
        return TransactionFate.COMMITTED if found is TransactionFate.UNKNOWN else found

    return mutant


def _publisher_last(participants: Any) -> Any:
    def mutant(self: TransactionContext) -> list[TransactionAware]:
        *others, last = participants.fget(self)
        return [last, *others]

    return property(mutant)


MUTANTS: Final[Mapping[str, Mutant]] = {
    "unknown-publish": Mutant(
        "the client takes a publish without an answer for undone",
        Undo,
        "rollback",
        _unknown_publish,
    ),
    "unknown-commit": Mutant(
        "the client takes a commit without an answer for a refused one",
        transaction_commit,
        "is_refusal",
        _unknown_commit,
    ),
    "second-commit": Mutant(
        "the client takes the answer *not in progress* for a refusal of the commit",
        transaction_commit,
        "is_refusal",
        _second_commit,
    ),
    "unheard-pointer": Mutant(
        "the client takes a write pointer that a snapshot does not know for committed",
        transaction_fate,
        "fate",
        _unheard_pointer,
    ),
    "publisher-last": Mutant(
        "the publisher persists before the other participants",
        TransactionContext,
        "participants",
        _publisher_last,
    ),
}

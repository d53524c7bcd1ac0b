"""Mutants of transactions: of their journal, of the client, and of the guards for Tephra's clients. See mutants.py."""

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
from broker.testing.mutants_routes import Mutant, always, nothing
from broker.topics.write import Write
from broker.transactions import manager, tephra_commits
from broker.transactions.journal import LedState
from broker.transactions.manager import Decision
from broker.transactions.tephra_commits import Commits


def _answer_before_durable(_: Any) -> Any:
    async def mutant(self: LedState) -> None:
        if self._last is not None:
            self._last.add_done_callback(lambda done: done.exception())

    return mutant


def _edits_not_carried(_: Any) -> Any:
    def mutant(self: Write) -> bool:
        return not (self.key is not None or self.producer is not None or self.payloads is None)

    return property(mutant)


def _floor_at_the_begin(write_snapshot: Any) -> Any:
    async def mutant(self: LedState) -> None:
        await write_snapshot(self)
        await self.leader.raise_floor(self.leader.hold.pointer)

    return mutant


def _unknown_publish(rollback: Any) -> Any:
    async def mutant(self: Undo) -> bool:
        self._unknown = False
        return bool(await rollback(self))

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


def _joined(_: Any) -> Any:
    async def mutant(self: Commits, transaction: int, write_pointer: int | None) -> None:
        await self._commit(transaction, write_pointer)

    return mutant


MUTANTS: Final[Mapping[str, Mutant]] = {
    # The journal.
    "answer-before-durable": Mutant(
        "the leader of the journal answers before its edit is on disk",
        LedState,
        "_on_disk",
        _answer_before_durable,
    ),
    "edits-not-carried": Mutant(
        "the next leader stores edits that were not stored",
        Write,
        "may_be_carried",
        _edits_not_carried,
    ),
    "nothing-behind-a-failed-edit": Mutant(
        "the leader stores edits that depend on a failed edit",
        LedState,
        "_end_if_failed",
        lambda _: lambda _led, future: future.exception(),
    ),
    "time-outs": Mutant(
        "transactions stay in progress after their time-out",
        manager,
        "expire",
        always(Decision((), 0)),
    ),
    "read-proof": Mutant(
        "the leader answers requests that change nothing from memory",
        LedState,
        "_prove",
        nothing,
    ),
    "floor-at-the-begin": Mutant(
        "the floor of the journal rises to the end of a snapshot, not to its begin",
        LedState,
        "write_snapshot",
        _floor_at_the_begin,
    ),
    # The client.
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
        always(value=True),
    ),
    "second-commit": Mutant(
        "the client takes the answer *not in progress* for a refusal of the commit",
        transaction_commit,
        "is_refusal",
        lambda _: lambda error, **_: isinstance(error, RequestError),
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
    # Tephra's clients, which must not take a commit for a failure.
    "not-heard": Mutant(
        "the server forgets a commit of Tephra's client whose answer was lost",
        Commits,
        "put_in_doubt",
        always(None),
    ),
    "in-doubt-again": Mutant(
        "the server takes a commit with an unknown outcome for refused while it is in progress",
        tephra_commits,
        "is_in_progress",
        always(value=False),
    ),
    "one-commit": Mutant(
        "a repeated commit of Tephra's client does not join the one in flight",
        Commits,
        "commit",
        _joined,
    ),
}

"""Mutants of guards for Tephra's clients, which must not take a commit for a failure. See mutants.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.model import Snapshot
from broker.testing.mutants_routes import Mutant
from broker.transactions import tephra_commits
from broker.transactions.tephra_commits import Commits


def _not_heard(_: Any) -> Any:
    def mutant(self: Commits, transaction: int) -> None:
        del self, transaction

    return mutant


def _commits_again(_: Any) -> Any:
    def mutant(snapshot: Snapshot, transaction: int) -> bool:
        del snapshot, transaction
        return False

    return mutant


def _joined(_: Any) -> Any:
    async def mutant(self: Commits, transaction: int, write_pointer: int | None) -> None:
        await self._commit(transaction, write_pointer)

    return mutant


MUTANTS: Final[Mapping[str, Mutant]] = {
    "not-heard": Mutant(
        "the server forgets a commit of Tephra's client whose answer was lost",
        Commits,
        "put_in_doubt",
        _not_heard,
    ),
    "in-doubt-again": Mutant(
        "the server takes a commit with an unknown outcome for refused while it is in progress",
        tephra_commits,
        "is_in_progress",
        _commits_again,
    ),
    "one-commit": Mutant(
        "a repeated commit of Tephra's client does not join the one in flight",
        Commits,
        "commit",
        _joined,
    ),
}

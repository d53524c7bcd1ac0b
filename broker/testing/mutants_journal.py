"""Mutants of the journal of transactions: see mutants.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.testing.mutants_routes import Mutant
from broker.topics.write import Write
from broker.transactions import manager
from broker.transactions.journal import LedState
from broker.transactions.manager import Decision


def _answer_before_durable(_: Any) -> Any:
    async def mutant(self: LedState) -> None:
        if self._last is not None:
            self._last.add_done_callback(lambda done: done.exception())

    return mutant


def _edits_not_carried(_: Any) -> Any:
    def mutant(self: Write) -> bool:
        return not (self.key is not None or self.producer is not None or self.payloads is None)

    return property(mutant)


def _nothing_behind_a_failed_edit(_: Any) -> Any:
    def mutant(self: LedState, future: Any) -> None:
        del self
        future.exception()

    return mutant


def _time_outs(_: Any) -> Any:
    def mutant(*_: Any) -> Decision[int]:
        return Decision((), 0)

    return mutant


def _read_proof(_: Any) -> Any:
    async def mutant(self: LedState) -> None:
        del self

    return mutant


def _floor_at_the_begin(write_snapshot: Any) -> Any:
    async def mutant(self: LedState) -> None:
        await write_snapshot(self)
        await self.leader.raise_floor(self.leader.hold.pointer)

    return mutant


MUTANTS: Final[Mapping[str, Mutant]] = {
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
        _nothing_behind_a_failed_edit,
    ),
    "time-outs": Mutant(
        "transactions stay in progress after their time-out",
        manager,
        "expire",
        _time_outs,
    ),
    "read-proof": Mutant(
        "the leader answers requests that change nothing from memory",
        LedState,
        "_prove",
        _read_proof,
    ),
    "floor-at-the-begin": Mutant(
        "the floor of the journal rises to the end of a snapshot, not to its begin",
        LedState,
        "write_snapshot",
        _floor_at_the_begin,
    ),
}

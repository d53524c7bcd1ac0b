"""Mutants of the clean-up of invalid transactions, and of pruning. See mutants.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.model import POINTERS_PER_MS, ROW_ID_MIN, Snapshot, TopicId
from broker.storage.head import Head
from broker.storage.hold import LogHold
from broker.testing.mutants_routes import Mutant
from broker.topics import settlement
from broker.topics.leader import TopicLeader
from broker.topics.settlement import SettlingRecord, SettlingWork, SnapshotView
from broker.topics.writer import LogWriter
from broker.transactions import prune
from broker.transactions.prune import Unpassed


def _prune_before_sweep(_: Any) -> Any:
    def mutant(
        topic: TopicId, generation: int, record: SettlingRecord | None, view: SnapshotView
    ) -> Unpassed:
        del record
        return Unpassed(topic, generation, view.bound, ROW_ID_MIN)

    return mutant


def _in_progress_below_the_bound(_: Any) -> Any:
    def mutant(bound: int, snapshot: Snapshot) -> int:
        del snapshot
        return bound

    return mutant


def _settled_by_age(_: Any) -> Any:
    def mutant(now_ms: int, life_ms: int, margin_ms: int) -> int:
        del life_ms, margin_ms
        return now_ms * POINTERS_PER_MS

    return mutant


def _announce(_: Any) -> Any:
    async def mutant(self: TopicLeader) -> None:
        del self

    return mutant


def _refuse(_: Any) -> Any:
    async def mutant(self: LogWriter, pointer: int) -> None:
        del self, pointer

    return mutant


def _fingerprint(_: Any) -> Any:
    def mutant(record: SettlingRecord, generation: int, view: SnapshotView) -> bool:
        del view
        return record.generation == generation and record.bound > 0

    return mutant


def _own_generation(counts: Any) -> Any:
    def mutant(record: SettlingRecord, generation: int, view: SnapshotView) -> bool:
        del generation
        return bool(counts(record, record.generation, view))

    return mutant


def _let_go(has_nothing: Any) -> Any:
    def mutant(before: SettlingRecord, work: SettlingWork, tail: Head) -> bool:
        return bool(has_nothing(before, work, tail._replace(owner="")))

    return mutant


def _end_inverting(_: Any) -> Any:
    async def mutant(self: LogHold) -> None:
        del self

    return mutant


MUTANTS: Final[Mapping[str, Mutant]] = {
    "prune-before-sweep": Mutant(
        "pruning removes pointers that no pass has covered in all topics",
        prune,
        "unpassed_of",
        _prune_before_sweep,
    ),
    "in-progress-below-the-bound": Mutant(
        "the clean-up ignores transactions in progress",
        settlement,
        "_below_in_progress",
        _in_progress_below_the_bound,
    ),
    "settled-by-age": Mutant(
        "an invalid transaction counts as settled at once, without its longest life and the margin",
        settlement,
        "_settled_by_age",
        _settled_by_age,
    ),
    "announce": Mutant(
        "a leader does not ask which transactions it must refuse",
        TopicLeader,
        "learn_refused",
        _announce,
    ),
    "refuse": Mutant(
        "a leader still publishes under write pointers that its pass has covered",
        LogWriter,
        "refuse_below",
        _refuse,
    ),
    "fingerprint": Mutant(
        "a pass counts though other transactions were invalid then",
        settlement,
        "counts",
        _fingerprint,
    ),
    "own-generation": Mutant(
        "a pass of an earlier generation counts", settlement, "counts", _own_generation
    ),
    "let-go": Mutant(
        "the clean-up skips a topic though its last leader did not hand it over",
        settlement,
        "has_nothing",
        _let_go,
    ),
    "end-inverting": Mutant(
        "a pass ends without a change of its own head",
        LogHold,
        "end_inverting",
        _end_inverting,
    ),
}

"""Mutants of the clean-up of invalid transactions, and of pruning. See mutants.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.model import LOG_KEY_MIN, POINTERS_PER_MS
from broker.storage.hold import LogHold
from broker.testing.mutants_routes import Mutant, nothing
from broker.topics import settlement
from broker.topics.leader import TopicLeader
from broker.topics.writer import LogWriter
from broker.transactions import prune
from broker.transactions.prune import Unpassed

MUTANTS: Final[Mapping[str, Mutant]] = {
    "prune-before-sweep": Mutant(
        "pruning removes pointers that no pass has covered in all topics",
        prune,
        "unpassed_of",
        lambda _: (
            lambda topic, generation, _record, view: Unpassed(
                topic, generation, view.bound, LOG_KEY_MIN
            )
        ),
    ),
    "in-progress-below-the-bound": Mutant(
        "the clean-up ignores transactions in progress",
        settlement,
        "_below_in_progress",
        lambda _: lambda bound, _snapshot: bound,
    ),
    "settled-by-age": Mutant(
        "an invalid transaction counts as settled at once, without its longest life and the margin",
        settlement,
        "_settled_by_age",
        lambda _: lambda now_ms, *_: now_ms * POINTERS_PER_MS,
    ),
    "announce": Mutant(
        "a leader does not ask which transactions it must refuse",
        TopicLeader,
        "learn_refused",
        nothing,
    ),
    "refuse": Mutant(
        "a leader still publishes under write pointers that its pass has covered",
        LogWriter,
        "refuse_below",
        nothing,
    ),
    "fingerprint": Mutant(
        "a pass counts though other transactions were invalid then",
        settlement,
        "counts",
        lambda _: (
            lambda record, generation, _view: record.generation == generation and record.bound > 0
        ),
    ),
    "own-generation": Mutant(
        "a pass of an earlier generation counts",
        settlement,
        "counts",
        lambda counts: lambda record, _generation, view: counts(record, record.generation, view),
    ),
    "let-go": Mutant(
        "the clean-up skips a topic though its last leader did not hand it over",
        settlement,
        "has_nothing",
        lambda has_nothing: (
            lambda before, work, tail: has_nothing(before, work, tail._replace(owner=""))
        ),
    ),
    "end-inverting": Mutant(
        "a pass ends without a change of its own head",
        LogHold,
        "end_inverting",
        nothing,
    ),
}

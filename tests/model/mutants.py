"""One mutant for each clause: it drops the clause, and a search must find a violation.

``runs_max``: the number of random runs, from seed 1, that find it; it changes with the model.
``small``: a mutant that is too rare for random runs is found by a complete search of this configuration, with one fault.
"""

from __future__ import annotations

from typing import NamedTuple

RUNS_MAX = 300
RUNS_MANY = 1000
"""They take some seconds on an idle machine."""


class Mutant(NamedTuple):
    """The behaviour without the clause, and the configurations to search."""

    does: str
    configs: list[str]
    runs_max: int = RUNS_MAX
    small: str | None = None


MUTANTS: dict[str, Mutant] = {
    "exact-head": Mutant("a change compares epoch and state only", ["plain", "log", "zombies"]),
    "tokens": Mutant("all tokens are the same", ["stores"], RUNS_MANY),
    "entry-epoch": Mutant("resolve ignores the entry's epoch", ["plain"]),
    "repeat-or-never": Mutant("an unchanged head counts as never", ["plain", "log"]),
    "stale-is-not-never": Mutant("any other head counts as never", ["plain"], RUNS_MANY),
    "gone-is-unknown": Mutant("a gone page counts as never", ["log", "zombies"], RUNS_MANY),
    "packed-is-unknown": Mutant(
        "an entry that is not found in a packed page counts as never", ["packed"], 4 * RUNS_MANY
    ),
    "seal-before-make": Mutant(
        "the next page is made before the leader's page is sealed", ["plain", "log"]
    ),
    "link": Mutant("the root never names a later page", ["log", "topic", "payloads"]),
    "link-every-claim": Mutant(
        "a claim links only after a make, or if the root as read names another page",
        ["floored"],
        RUNS_MANY,
    ),
    "own-after-link": Mutant(
        "a failed link is ignored", ["churn", "topic", "payloads-topic", "log"], RUNS_MANY
    ),
    "ids-rise": Mutant("ids come from the clock alone", ["plain"]),
    "sealed-before-next": Mutant("a reader goes on from an open page", ["plain", "log", "zombies"]),
    "up-to-the-pointer": Mutant(
        "a page in pieces is not compared with its pointer", ["plain", "log", "zombies"]
    ),
    "look-at-the-root": Mutant("an absent, gone or empty page is the end", ["log", "zombies"]),
    "leader-ends-in-its-page": Mutant("a leader's read may end in any page", ["rollback", "marks"]),
    "proof": Mutant("polls are answered from memory", ["plain"]),
    "last-step": Mutant("a rollback without the last change of the own head", ["rollback"]),
    "marks-above-marked": Mutant("a claim doesn't read headers above `marked`", ["marks"]),
    "put-before-raise": Mutant(
        "a claim raises `marked` without putting the marks that it found", ["marks"]
    ),
    "nothing-pending": Mutant("an append raises `marked` while marks wait", ["marks"]),
    "up-to-what-was-put": Mutant("`marked` rises to the pointer after a put", ["marks"]),
    "marks-before-floor": Mutant("the floor passes marks that are not put", ["marks-floor"]),
    "own-effect": Mutant("a repetition in another transaction is answered as done", ["effects"]),
    "kept-effect": Mutant("a repetition of a rolled-back append is answered as done", ["effects"]),
    "floor-not-tail": Mutant("the floor rises above the tail", ["log", "zombies"]),
    "gone-stays": Mutant(
        "heads of pages below the floor are removed", ["zombies", "log"], small="gone"
    ),
    "dead-generations-stay": Mutant(
        "heads of a dead generation are removed", ["churn"], small="dead"
    ),
    "close-at-delete": Mutant("the root is deleted, the tail not closed", ["topic"]),
    "finish-a-begun-deletion": Mutant(
        "a claim that meets a closed tail tries again", ["topic", "churn"]
    ),
    "epochs-over-generations": Mutant("the first page of a generation has epoch 1", ["topic"]),
    "absent-made-closed": Mutant(
        "an absent tail counts as closed",
        ["topic", "payloads", "payloads-topic"],
        RUNS_MANY,
    ),
    "store-proof": Mutant("a store is acknowledged without a proof", ["payloads-topic"]),
    "void-while-open": Mutant(
        "a store in a deleted topic is void, also if its log is sealed",
        ["payloads-topic"],
        RUNS_MANY,
    ),
    "close-at-publish": Mutant("a reference is published, the tail not closed", ["payloads"]),
    "look-for-the-reference": Mutant("a sealed log's reference is appended again", ["payloads"]),
    "closed-reference": Mutant("a reader ends in a page that is not closed", ["payloads"]),
    "synced": Mutant("a change is answered True before it is on disk", ["disk"]),
    "leveldb-reopen": Mutant("writing goes on after an error", ["disk"]),
}

ELSEWHERE = {
    "id-claim": "ids are numbers here; two nodes can't make the same one",
    "lane-order": "requests of a client have no order here",
    "deadline": "no clock runs",
    "sweep-margin": "the model assumes the margin: no call for the log is in flight",
    "clock": "no clock runs",
}
"""Clauses that this model does not have, with the reasons."""

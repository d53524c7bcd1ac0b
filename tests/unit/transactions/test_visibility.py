"""Every combination of the fates of three transactions, and whether a snapshot shows, skips or waits for each."""

from __future__ import annotations

import itertools
from typing import TypeVar

import pytest

from broker.model import Snapshot
from broker.topics.fetch import FetchAction, judge
from broker.transactions import manager
from broker.transactions.manager import Decision
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState
from broker.wire.transaction import (
    decode_snapshot,
    decode_transaction,
    encode_snapshot,
    encode_transaction,
)

Result = TypeVar("Result")
SETTINGS = TransactionSettings()
FATES = ("open", "committing", "commit", "abort", "invalidate", "time out", "time out, abort")
SEEN = {
    "open": FetchAction.BLOCK,
    "committing": FetchAction.BLOCK,
    "commit": FetchAction.TAKE,
    "abort": FetchAction.TAKE,
    "invalidate": FetchAction.SKIP,
    "time out": FetchAction.SKIP,
    "time out, abort": FetchAction.TAKE,
}
SEEN_OF_LONG = {**SEEN, "abort": FetchAction.SKIP, "time out, abort": FetchAction.SKIP}


class World:
    """A state, and the calls that change it."""

    def __init__(self) -> None:
        self.state = ServiceState()
        self.do(manager.begin(self.state, 1000))

    def do(self, decision: Decision[Result]) -> Result:
        for edit in decision.edits:
            self.state.apply(self.state.number + 1, edit)
        return decision.answer

    def start(self, *, long: bool = False, ends_ms: int = 60_000) -> Snapshot:
        return self.do(
            manager.start(self.state, 1000, SETTINGS, long=long, timeout_s=ends_ms / 1000)
        )

    def end(self, transaction: int, fate: str) -> None:
        state = self.state
        if fate == "committing":
            self.do(manager.can_commit(state, transaction, [b"%d" % transaction], SETTINGS))
        elif fate == "commit":
            self.do(manager.commit(state, transaction))
        elif fate == "invalidate":
            self.do(manager.invalidate(state, transaction))
        elif fate.startswith("time out"):
            self.do(manager.expire(state, 1002, patient_ms=lambda _: 1002))
        if fate.endswith("abort"):
            self.do(manager.abort(state, transaction))


def begun_as(world: World, fate: str, *, long: bool, checkpointed: bool) -> list[int]:
    """Begin a transaction for a fate; return its pointers."""
    begun = world.start(long=long, ends_ms=1 if fate.startswith("time out") else 60_000)
    pointers = [begun.transaction_id]
    if checkpointed:
        checked = world.do(manager.checkpoint(world.state, 1000, pointers[0], SETTINGS))
        pointers.append(checked.write_pointer)
    return pointers


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_consumer_takes_skips_or_waits_at_each_pointer(order: tuple[int, ...]) -> None:
    """The first transaction has a checkpoint."""
    kinds = [(fate, long) for fate in FATES for long in (False, True)]
    for three in itertools.product(kinds, repeat=3):
        world = World()
        pointers = [
            begun_as(world, fate, long=long, checkpointed=number == 0)
            for number, (fate, long) in enumerate(three)
        ]
        before = world.state.snapshot()
        for number in order:
            world.end(pointers[number][0], three[number][0])
        after = world.state.snapshot()
        for mine, (fate, long) in zip(pointers, three, strict=True):
            wanted = (SEEN_OF_LONG if long else SEEN)[fate]
            for pointer in mine:
                assert judge(pointer, before) is FetchAction.BLOCK
                assert judge(pointer, after) is wanted, (three, pointer, after)
        for copy in (
            decode_transaction(encode_transaction(after)),
            decode_snapshot(encode_snapshot(after)),
        ):
            assert copy == after


@pytest.mark.parametrize("level", list(Snapshot.Visibility))
def test_a_transaction_sees_its_own_pointers_by_its_level(level: Snapshot.Visibility) -> None:
    world = World()
    checked = begun = world.start()
    for _ in range(2):
        checked = world.do(manager.checkpoint(world.state, 1000, begun.transaction_id, SETTINGS))
    checked.visibility = level
    former = [checked.transaction_id, *checked.checkpoint_pointers]
    current = former.pop()
    assert all(checked.is_visible(pointer) for pointer in former)
    assert checked.is_visible(current) is (
        level is not Snapshot.Visibility.SNAPSHOT_EXCLUDE_CURRENT
    )

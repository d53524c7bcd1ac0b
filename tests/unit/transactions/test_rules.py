"""Tephra's rules as a state machine, against a model that keeps a list of all transactions and no more.

The model shares no structure with the manager. It records the fate of each transaction, the keys that it changed, and the
step that ended it. After each step the state is restored from its edits, and from a snapshot.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from broker.errors import TransactionConflict, TransactionNotInProgress
from broker.model import Snapshot
from broker.transactions import manager, snapshots
from broker.transactions.edits import Edit, encode_edit
from broker.transactions.manager import Decision
from broker.transactions.replay import Replay
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState

SETTINGS = TransactionSettings()
KEYS = st.sets(st.sampled_from([b"a", b"b"]), min_size=1)


@dataclass
class Known:
    """A transaction, as the model knows it. ``fate``: open, committed, aborted or invalid."""

    snapshot: Snapshot
    long: bool
    expires_ms: int
    pointers: list[int]
    fate: str = "open"
    changes: set[bytes] = field(default_factory=set)
    ended_at: int = 0
    """The step that ended it; 0: none."""
    began_at: int = 0
    commit_pointer: int = 0
    """The pointer after the last one that was given when it committed; 0: it has not committed."""


class Rules(RuleBasedStateMachine):
    """The manager beside the model."""

    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.state = ServiceState()
        self.messages: list[bytes] = []
        self.now_ms = 1000
        self.steps = itertools.count(1)
        self.known: dict[int, Known] = {}
        self.given: list[int] = []
        self.named: dict[str, int] = {}
        self.truncated: set[int] = set()
        self.forgotten: set[int] = set()
        """The steps of commits with which no transaction can conflict any more."""
        self.do(manager.begin(self.state, self.now_ms))

    def do(self, decision: Decision[Any]) -> Any:
        for edit in decision.edits:
            self.write(edit)
        return decision.answer

    def write(self, edit: Edit) -> None:
        number = self.state.number + 1
        self.messages.append(encode_edit(number, edit))
        self.state.apply(number, edit)

    def gave(self, pointer: int) -> None:
        assert all(pointer > before for before in self.given)
        self.given.append(pointer)

    @rule(target=transactions, long=st.booleans(), timeout_ms=st.integers(1, 50))
    def start(self, long: bool, timeout_ms: int) -> int:
        snapshot = self.do(
            manager.start(self.state, self.now_ms, SETTINGS, long=long, timeout_s=timeout_ms / 1000)
        )
        pointer: int = snapshot.transaction_id
        self.gave(pointer)
        expires_ms = self.now_ms + timeout_ms
        made = Known(snapshot, long, expires_ms, [pointer], began_at=next(self.steps))
        self.known[pointer] = made
        return pointer

    @rule(
        target=transactions,
        name=st.sampled_from(["a", "b"]),
        long=st.booleans(),
        timeout_ms=st.integers(1, 50),
    )
    def start_under_a_name(self, name: str, long: bool, timeout_ms: int) -> int:
        """The former transaction under the name becomes invalid; the snapshot is the one after that."""
        former = self.known.get(self.named.get(name, 0))
        snapshot = self.do(
            manager.start(
                self.state,
                self.now_ms,
                SETTINGS,
                long=long,
                timeout_s=timeout_ms / 1000,
                name=name,
            )
        )
        if former is not None and former.fate == "open":
            self.end(former, "invalid")
        pointer: int = snapshot.transaction_id
        now = self.state.snapshot()
        assert (list(now.invalids), now.read_pointer) == (
            list(snapshot.invalids),
            snapshot.read_pointer,
        )
        assert list(now.in_progress) == [*snapshot.in_progress, pointer]
        self.gave(pointer)
        expires_ms = self.now_ms + timeout_ms
        made = Known(snapshot, long, expires_ms, [pointer], began_at=next(self.steps))
        self.known[pointer], self.named[name] = made, pointer
        return pointer

    @rule(milliseconds=st.integers(-20, 40))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms = max(self.now_ms + milliseconds, 1)

    @rule(transaction=transactions, keys=KEYS)
    def can_commit(self, transaction: int, keys: set[bytes]) -> None:
        known = self.known[transaction]
        wanted = self.refusal(known, keys)
        if wanted is not None:
            with pytest.raises(wanted):
                manager.can_commit(self.state, transaction, sorted(keys), SETTINGS)
            return
        self.do(manager.can_commit(self.state, transaction, sorted(keys), SETTINGS))
        known.changes = keys

    @rule(transaction=transactions)
    def commit(self, transaction: int) -> None:
        known = self.known[transaction]
        wanted = self.refusal(known, known.changes)
        if wanted is not None:
            with pytest.raises(wanted):
                manager.commit(self.state, transaction)
            return
        self.do(manager.commit(self.state, transaction))
        self.end(known, "committed")

    @rule(transaction=transactions, keys=KEYS)
    def finish(self, transaction: int, keys: set[bytes]) -> None:
        """Send the keys and commit, as most transactions do."""
        self.can_commit(transaction, keys)
        self.commit(transaction)

    def refusal(self, known: Known, keys: set[bytes]) -> type[Exception] | None:
        if known.fate != "open":
            return TransactionNotInProgress
        for other in self.known.values():
            overlaps = other.fate == "committed" and other.ended_at > known.began_at
            if overlaps and other.changes & keys and other.ended_at not in self.forgotten:
                return TransactionConflict
        return None

    def end(self, known: Known, fate: str) -> None:
        if known.fate == "open":
            known.ended_at = next(self.steps)
            known.commit_pointer = self.given[-1] + 1 if fate == "committed" else 0
        known.fate = fate
        self.forget()

    def forget(self) -> None:
        """Record the commits below all short transactions in progress. Long transactions do not conflict with them.

        As in Tephra, a commit whose pointer the oldest short transaction was then given is not below it.
        """
        short = [each for each in self.known.values() if each.fate == "open" and not each.long]
        oldest = min((each.pointers[0] for each in short), default=None)
        for each in self.known.values():
            if each.fate == "committed" and (oldest is None or each.commit_pointer < oldest):
                self.forgotten.add(each.ended_at)

    @rule(transaction=transactions)
    def abort(self, transaction: int) -> None:
        known = self.known[transaction]
        self.do(manager.abort(self.state, transaction))
        if known.fate == "open":
            self.end(known, "invalid" if known.long else "aborted")
        elif known.fate == "invalid" and not known.long and transaction not in self.truncated:
            known.fate = "aborted"

    @rule(transaction=transactions)
    def invalidate(self, transaction: int) -> None:
        known = self.known[transaction]
        done = self.do(manager.invalidate(self.state, transaction))
        assert done is (known.fate == "open")
        if done:
            self.end(known, "invalid")

    @rule(transaction=transactions)
    def checkpoint(self, transaction: int) -> None:
        known = self.known[transaction]
        if known.fate != "open":
            with pytest.raises(TransactionNotInProgress):
                manager.checkpoint(self.state, self.now_ms, transaction, SETTINGS)
            return
        seen = self.do(manager.checkpoint(self.state, self.now_ms, transaction, SETTINGS))
        self.gave(seen.write_pointer)
        known.pointers.append(seen.write_pointer)
        for pointer in self.given:
            if pointer not in known.pointers:
                was = known.snapshot.is_visible(pointer)
                ended = self.is_truncated(pointer) or self.fate_of(pointer) == "aborted"
                assert seen.is_visible(pointer) is was or (was, ended) == (False, True)

    @rule()
    def expire(self) -> None:
        over = [
            each
            for each in self.known.values()
            if each.fate == "open" and self.now_ms > each.expires_ms
        ]
        assert self.do(
            manager.expire(self.state, self.now_ms, patient_ms=lambda _: self.now_ms)
        ) == len(over)
        for each in over:
            self.end(each, "invalid")

    @rule(transaction=transactions)
    def truncate(self, transaction: int) -> None:
        known = self.known[transaction]
        count = self.do(manager.truncate(self.state, known.pointers))
        assert count == (
            len(known.pointers)
            if known.fate == "invalid" and transaction not in self.truncated
            else 0
        )
        if known.fate == "invalid":
            self.truncated.add(transaction)

    @rule(after=st.integers(0, 5))
    def snapshot_of_the_state(self, after: int) -> None:
        """Write a snapshot, some edits within it."""
        frozen = snapshots.frozen(self.state)
        parts = list(snapshots.encode_parts(frozen))
        written = [snapshots.encode_begin(frozen.number), *parts]
        at = len(written)
        self.messages += written
        for _ in range(after):
            self.write(manager.start(self.state, self.now_ms, SETTINGS).edits[0])
            self.write(manager.abort(self.state, self.state.last).edits[0])
            self.given.append(self.state.last)
        self.messages.append(snapshots.encode_end(frozen.number, len(parts)))
        del self.messages[: len(self.messages) - at - 2 * after - 1]

    def fate_of(self, pointer: int) -> str:
        for each in self.known.values():
            if pointer in each.pointers:
                return each.fate
        return "aborted"

    def is_truncated(self, pointer: int) -> bool:
        """An invalid transaction that an operator truncates is visible again, as Tephra's is."""
        return any(pointer in self.known[first].pointers for first in self.truncated)

    @invariant()
    def shows_the_fate_of_each_transaction(self) -> None:
        seen = self.state.snapshot()
        for known in self.known.values():
            for pointer in known.pointers:
                is_open = pointer in seen.in_progress
                gone = known.pointers[0] in self.truncated
                assert is_open is (known.fate == "open")
                assert seen.is_invalid(pointer) is (known.fate == "invalid" and not gone)
                if known.fate in ("committed", "aborted"):
                    assert seen.is_visible(pointer)
                elif not gone:
                    assert not seen.is_visible(pointer)

    @invariant()
    def the_journal_restores_the_state(self) -> None:
        replay = Replay()
        for message in self.messages:
            replay.take(message)
        assert comparable(replay.state) == comparable(self.state)


def comparable(state: ServiceState) -> dict[str, Any]:
    """Return all parts of a state as values."""
    parts = {**vars(state), "names": list(state.names.items())}
    parts["in_progress"] = {
        pointer: {name: getattr(each, name) for name in each.__slots__}
        for pointer, each in state.in_progress.items()
    }
    return parts


SHORT = settings(max_examples=200, stateful_step_count=40, deadline=None)
LONG = settings(max_examples=3000, stateful_step_count=80, deadline=None)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)])
def test_the_manager_keeps_the_rules(steps: settings) -> None:
    run_state_machine_as_test(Rules, settings=steps)

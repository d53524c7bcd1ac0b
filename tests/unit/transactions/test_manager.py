"""The rules, one by one: decisions on a state, without journal, time and I/O."""

from __future__ import annotations

from typing import TypeVar

import pytest

from broker.errors import (
    BadRequest,
    ChangesTooLarge,
    Overloaded,
    StorageCorrupt,
    TransactionConflict,
    TransactionNotInProgress,
)
from broker.model import POINTER_MAX, POINTERS_PER_MS, Snapshot
from broker.transactions import manager, service_state
from broker.transactions.edits import Committed, Truncated, decode_edit, encode_edit
from broker.transactions.manager import Decision, OlderInProgress
from broker.transactions.service_settings import TransactionSettings
from broker.transactions.service_state import ServiceState

NOW_MS = 1000
SETTINGS = TransactionSettings(
    in_progress_max=5, changes_max=3, changes_bytes_max=10, change_sets_bytes_max=1_400
)
Result = TypeVar("Result")


class Manager:
    """A state on which decisions are made."""

    def __init__(self) -> None:
        self.state = ServiceState()
        self.now_ms = NOW_MS
        self.do(manager.begin(self.state, self.now_ms))

    def do(self, decision: Decision[Result]) -> Result:
        for edit in decision.edits:
            number = self.state.number + 1
            assert decode_edit(encode_edit(number, edit)) == (number, edit)
            self.state.apply(number, edit)
        return decision.answer

    def start(self, **more: bool | float | str) -> Snapshot:
        return self.do(manager.start(self.state, self.now_ms, SETTINGS, **more))  # type: ignore[arg-type]

    def can_commit(self, transaction: int, *keys: bytes) -> None:
        self.do(manager.can_commit(self.state, transaction, keys, SETTINGS))

    def commit(self, transaction: int, pointer: int | None = None) -> None:
        self.do(manager.commit(self.state, transaction, pointer))

    def abort(self, transaction: int) -> None:
        self.do(manager.abort(self.state, transaction))

    def invalidate(self, transaction: int) -> bool:
        return self.do(manager.invalidate(self.state, transaction))

    def checkpoint(self, transaction: int) -> Snapshot:
        return self.do(manager.checkpoint(self.state, self.now_ms, transaction, SETTINGS))

    def expire(self, at_ms: int) -> int:
        return self.do(manager.expire(self.state, at_ms, patient_ms=lambda _: at_ms))

    @property
    def seen(self) -> Snapshot:
        return self.state.snapshot()


@pytest.fixture
def tx() -> Manager:
    return Manager()


def test_an_empty_state_shows_all_up_to_its_beginning(tx: Manager) -> None:
    assert tx.state.last == tx.state.read_pointer == NOW_MS * POINTERS_PER_MS


def test_pointers_are_the_time_or_the_next_number(tx: Manager) -> None:
    first = NOW_MS * POINTERS_PER_MS
    assert [tx.start().transaction_id for _ in range(2)] == [first + 1, first + 2]
    tx.now_ms += 1
    assert tx.start().transaction_id == first + POINTERS_PER_MS
    tx.now_ms = 1
    assert tx.start().transaction_id == first + POINTERS_PER_MS + 1


def test_a_snapshot_lists_the_transactions_in_progress_and_invalid(tx: Manager) -> None:
    long, short, invalid = tx.start(long=True), tx.start(), tx.start()
    checked = tx.checkpoint(short.transaction_id)
    tx.invalidate(invalid.transaction_id)
    seen = tx.start(long=True)
    pointers = [long.transaction_id, short.transaction_id, checked.write_pointer]
    assert (list(seen.in_progress), list(seen.invalids)) == (pointers, [invalid.transaction_id])
    assert (seen.first_short_in_progress, seen.long) == (short.transaction_id, True)
    assert long.first_short_in_progress == POINTER_MAX
    # Its own pointer is above the read pointer, so no snapshot shows it before the commit.
    assert seen.is_own(seen.transaction_id)
    assert not tx.seen.is_visible(seen.transaction_id)


@pytest.mark.parametrize("long", [False, True])
def test_a_commit_makes_all_its_pointers_visible(tx: Manager, long: bool) -> None:
    begun = tx.start(long=long)
    checked = tx.checkpoint(begun.transaction_id)
    before = tx.start()
    with pytest.raises(BadRequest, match="not a write pointer"):
        tx.commit(begun.transaction_id, before.transaction_id)
    tx.commit(begun.transaction_id, checked.write_pointer)
    for pointer in (begun.transaction_id, checked.write_pointer):
        assert tx.seen.is_visible(pointer)
        assert not before.is_visible(pointer)
    with pytest.raises(TransactionNotInProgress):
        tx.commit(begun.transaction_id)


def test_the_later_of_two_transactions_that_changed_a_key_conflicts(tx: Manager) -> None:
    one, two, other = tx.start(), tx.start(), tx.start()
    tx.can_commit(one.transaction_id, b"a", b"b")
    tx.can_commit(two.transaction_id, b"b")
    tx.commit(one.transaction_id)
    with pytest.raises(TransactionConflict, match=b"b".hex()):
        tx.commit(two.transaction_id)
    with pytest.raises(TransactionConflict):
        tx.can_commit(other.transaction_id, b"c", b"a")
    tx.can_commit(other.transaction_id, b"c")
    tx.commit(other.transaction_id)
    later = tx.start()
    tx.can_commit(later.transaction_id, b"a")
    tx.commit(later.transaction_id)


def test_commits_of_one_moment_all_conflict_with_earlier_transactions(tx: Manager) -> None:
    one, two, before = tx.start(), tx.start(), tx.start()
    for each, key in ((one, b"a"), (two, b"b")):
        tx.can_commit(each.transaction_id, key)
        tx.commit(each.transaction_id)
    for key in (b"a", b"b"):
        with pytest.raises(TransactionConflict):
            tx.can_commit(before.transaction_id, key)
    # Both commits have the number behind the last pointer. The next start gets this number, so it began after them.
    after = tx.start()
    tx.can_commit(after.transaction_id, b"a")


def test_a_change_set_is_forgotten_when_no_earlier_short_transaction_is_left(tx: Manager) -> None:
    tx.start(long=True)
    old, one = tx.start(), tx.start()
    tx.can_commit(one.transaction_id, b"a")
    tx.commit(one.transaction_id)
    assert len(tx.state.committed) == 1
    assert tx.state.change_bytes > 0
    tx.abort(old.transaction_id)
    assert not tx.state.committed
    assert not tx.state.committed_at
    assert tx.state.change_bytes == 0


def test_one_edit_forgets_a_bounded_number_of_change_sets(
    tx: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_state, "FORGOTTEN_AT_ONCE", 2)
    oldest = tx.start().transaction_id
    for key in (b"a", b"b", b"c"):
        other = tx.start().transaction_id
        tx.can_commit(other, key)
        tx.do(manager.commit(tx.state, other))
    tx.do(manager.commit(tx.state, oldest))
    assert len(tx.state.committed) == 1
    tx.now_ms += 1
    later = tx.start().transaction_id
    assert not tx.state.committed
    assert not tx.state.committed_at
    assert not tx.state.change_bytes
    tx.can_commit(later, b"c")


def test_an_abort_makes_a_short_transaction_visible_and_a_long_one_invalid(tx: Manager) -> None:
    short, long = tx.start(), tx.start(long=True)
    checked = tx.checkpoint(short.transaction_id)
    tx.abort(short.transaction_id)
    tx.abort(long.transaction_id)
    assert tx.seen.is_visible(short.transaction_id)
    assert tx.seen.is_visible(checked.write_pointer)
    assert list(tx.seen.invalids) == [long.transaction_id]
    for again in (short, long):
        tx.abort(again.transaction_id)
    assert list(tx.seen.invalids) == [long.transaction_id]
    tx.abort(12345)


def test_an_abort_makes_a_short_transaction_that_timed_out_visible(tx: Manager) -> None:
    short, long = tx.start(timeout_s=1), tx.start(long=True, timeout_s=1)
    checked = tx.checkpoint(short.transaction_id)
    assert tx.expire(NOW_MS + 1000) == 0
    assert tx.expire(NOW_MS + 1001) == 2
    pointers = [short.transaction_id, long.transaction_id, checked.write_pointer]
    assert list(tx.seen.invalids) == sorted(pointers)
    assert not tx.state.pointers
    with pytest.raises(TransactionNotInProgress, match="invalid"):
        tx.commit(short.transaction_id)
    with pytest.raises(TransactionNotInProgress, match="invalid"):
        tx.can_commit(short.transaction_id)
    tx.abort(short.transaction_id)
    tx.abort(long.transaction_id)
    assert list(tx.seen.invalids) == [long.transaction_id]
    assert tx.seen.is_visible(checked.write_pointer)


def test_only_a_transaction_in_progress_can_be_invalidated(tx: Manager) -> None:
    begun, done = tx.start(), tx.start()
    tx.commit(done.transaction_id)
    tx.can_commit(begun.transaction_id, b"a")
    assert tx.invalidate(begun.transaction_id)
    assert not tx.invalidate(begun.transaction_id)
    assert not tx.invalidate(done.transaction_id)
    assert not tx.invalidate(1)
    assert tx.state.change_bytes == 0


def test_a_checkpoint_keeps_the_view_of_its_transaction(tx: Manager) -> None:
    before = tx.start()
    begun = tx.start()
    after = tx.start()
    for each in (before, after):
        tx.commit(each.transaction_id)
    checked = tx.checkpoint(begun.transaction_id)
    again = tx.checkpoint(begun.transaction_id)
    for seen in (checked, again):
        assert seen.transaction_id == begun.transaction_id
        assert (seen.read_pointer, list(seen.in_progress)) == (
            begun.read_pointer,
            list(begun.in_progress),
        )
        assert not seen.is_visible(before.transaction_id)
        assert not seen.is_visible(after.transaction_id)
    pointers = [checked.write_pointer, again.write_pointer]
    assert list(again.checkpoint_pointers) == pointers
    assert all(again.is_own(each) for each in pointers)
    with pytest.raises(TransactionNotInProgress):
        tx.checkpoint(before.transaction_id)


def test_pointers_are_truncated_by_name_and_by_time(tx: Manager) -> None:
    old, new, kept = tx.start(), tx.start(), tx.start()
    for each in (old, new):
        tx.invalidate(each.transaction_id)
    pointers = [old.transaction_id, 77, kept.transaction_id]
    assert tx.do(manager.truncate(tx.state, pointers)) == 1
    assert list(tx.seen.invalids) == [new.transaction_id]
    with pytest.raises(OlderInProgress, match=str(kept.transaction_id)):
        manager.truncate_before(tx.state, NOW_MS + 1)
    assert tx.do(manager.truncate_before(tx.state, NOW_MS)) == 0
    tx.commit(kept.transaction_id)
    assert tx.do(manager.truncate_before(tx.state, NOW_MS + 1)) == 1
    assert not tx.state.invalids
    assert not tx.state.ended


def test_a_reset_forgets_all_but_the_last_pointer(tx: Manager) -> None:
    tx.now_ms += 5000
    last = tx.start()
    tx.invalidate(tx.start().transaction_id)
    tx.do(manager.begin(tx.state, NOW_MS))
    assert not tx.state.in_progress
    assert not tx.state.invalids
    assert tx.start().transaction_id > last.transaction_id
    assert tx.seen.is_visible(last.transaction_id)


def test_bounds(tx: Manager) -> None:
    begun = tx.start()
    for keys in ((b"1", b"2", b"3", b"4"), (b"12345678901",)):
        with pytest.raises(ChangesTooLarge):
            tx.can_commit(begun.transaction_id, *keys)
    tx.can_commit(begun.transaction_id, b"1", b"2", b"3", b"3", b"2")
    others = [tx.start(client="x" * 256) for _ in range(4)]
    with pytest.raises(Overloaded, match="transactions_in_progress_max"):
        tx.start()
    with pytest.raises(Overloaded):
        tx.checkpoint(begun.transaction_id)
    tx.can_commit(others[0].transaction_id, b"4", b"5", b"6")
    with pytest.raises(Overloaded, match="memory"):
        tx.can_commit(others[1].transaction_id, b"7", b"8")
    with pytest.raises(BadRequest, match="client"):
        Manager().start(client="x" * 257)
    assert Manager().start(long=True, timeout_s=90_000).long
    with pytest.raises(BadRequest, match="long"):
        Manager().start(long=True, timeout_s=90_001)


def test_long_transactions_leave_places_for_short_ones(tx: Manager) -> None:
    longs = [tx.start(long=True) for _ in range(4)]
    with pytest.raises(Overloaded, match="no more long ones"):
        tx.start(long=True)
    with pytest.raises(Overloaded, match="no more long ones"):
        tx.checkpoint(longs[0].transaction_id)
    assert not tx.start().long


def test_an_edit_with_a_wrong_number_or_that_does_not_fit_is_refused(tx: Manager) -> None:
    with pytest.raises(StorageCorrupt, match="an edit is missing"):
        tx.state.apply(5, Truncated(()))
    with pytest.raises(StorageCorrupt, match="does not fit"):
        tx.state.apply(2, Committed(99))
    for message in (
        b"",
        b"\2\0\2",
        b"\1\0",
        b"\1\0\2",
        b"\1\0\2\2\2",
        b"\1\x63\2\2",
        b"\1\1\2\2\0\2\2\6\xff\xff\xff",
    ):
        with pytest.raises(StorageCorrupt):
            decode_edit(message)


def test_one_decision_ends_and_truncates_a_bounded_number(
    tx: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TIMED_OUT_AT_ONCE", 2)
    monkeypatch.setattr(manager, "TRUNCATED_AT_ONCE", 2)
    for _ in range(3):
        tx.start()
    after_ms = tx.now_ms + 10**9

    def expire() -> Decision[int]:
        return manager.expire(tx.state, after_ms, patient_ms=lambda _: after_ms)

    assert [tx.do(expire()) for _ in range(3)] == [2, 1, 0]
    assert len(tx.state.invalids) == 3
    assert [tx.do(manager.truncate_before(tx.state, after_ms)) for _ in range(3)] == [2, 1, 0]
    assert not tx.state.invalids

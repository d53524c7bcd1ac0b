import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import guards
from broker.model import ROW_ID_MAX, ROW_ID_MIN, row_id
from broker.storage import control
from broker.storage.control import (
    HOLD_NONCE_BYTES,
    RANGES_MAX,
    TOKEN_BYTES,
    Control,
    Deleted,
    EpochRange,
    Resolution,
    StaleGeneration,
    State,
    resolve,
)

row_ids = st.builds(row_id, st.integers(0, 60), st.integers(0, 3))
tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)


def token(number: int) -> bytes:
    return number.to_bytes(TOKEN_BYTES, "big")


def claim(current: Control | None, number: int = 1, generation: int = 1) -> Control:
    return control.claimed(current, owner=f"n{number}", generation=generation, token=token(number))


class Model:
    """What the ranges must say, kept the long way: the epoch under which each id was committed."""

    def __init__(self) -> None:
        self.control = claim(None)
        self.committed: dict[bytes, int] = {}
        self.refused: list[tuple[bytes, int]] = []
        self.writes = 1

    def step(self, action: int, count: int) -> None:
        self.writes += 1
        fresh = token(self.writes)
        if action == 0:
            self.commit(count, fresh)
        elif action == 1:
            self.leave_rows(count)
            self.control = control.claimed(
                control.spilled(self.control, fresh), owner="n", generation=1, token=fresh
            )
        elif action == 2 and self.control.owner:
            self.control = control.released(self.control, fresh)
            self.control = control.claimed(self.control, owner="n", generation=1, token=fresh)
        else:
            self.control = control.edited(self.control, fresh)
        self.control.check()

    def ids(self, count: int) -> list[bytes]:
        first = int.from_bytes(self.control.pointer, "big") + 1
        return [(first + number).to_bytes(10, "big") for number in range(count)]

    def commit(self, count: int, fresh: bytes) -> None:
        ids = self.ids(count)
        self.committed.update(dict.fromkeys(ids, self.control.epoch))
        self.control = control.committed(self.control, ids[-1], fresh)

    def leave_rows(self, count: int) -> None:
        self.refused += [(row, self.control.epoch) for row in self.ids(count)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_exactly_what_was_committed_counts(steps):
    model = Model()
    for action, count in steps:
        model.step(action, count)
    for row, epoch in model.committed.items():
        assert model.control.counts(row, epoch)
    for row, epoch in model.refused:
        if model.committed.get(row) != epoch:
            assert not model.control.counts(row, epoch)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40), row_ids)
def test_pruning_keeps_what_may_be_asked_about(steps, horizon):
    model = Model()
    for action, count in steps:
        model.step(action, count)
    floored = control.floor_raised(model.control, horizon, token(0))
    pruned = control.pruned(floored, horizon)
    pruned.check()
    assert pruned.ranges[-1] == model.control.ranges[-1]
    assert pruned.has_committed() == model.control.has_committed()
    for row, epoch in model.committed.items():
        if row >= min(floored.floor, horizon):
            assert pruned.counts(row, epoch)
    assert control.pruned(pruned, horizon) == pruned


@given(st.lists(st.integers(1, 3), min_size=RANGES_MAX, max_size=RANGES_MAX + 80))
def test_many_takeovers_spill_and_stay_whole(counts):
    model = Model()
    spilled: dict[bytes, tuple[EpochRange, ...]] = {}
    for number, count in enumerate(counts):
        model.step(0, count)
        moved = control.overflowing(model.control)
        if moved:
            # ``step`` makes the token of the claim that names the side row like this.
            spilled[token(model.writes + 1)] = moved
        model.step(1, 1)
        assert len(model.control.ranges) <= RANGES_MAX + 1
        assert number >= 0
    assert tuple(spilled) == model.control.older
    whole = model.control._replace(
        ranges=tuple(entry for entries in spilled.values() for entry in entries)
        + model.control.ranges,
    )
    whole.check()
    assert all(whole.counts(row, epoch) for row, epoch in model.committed.items())
    assert not any(
        whole.counts(row, epoch)
        for row, epoch in model.refused
        if model.committed.get(row) != epoch
    )


class TestClaims:
    def test_a_claim_without_commits_replaces_the_entry(self):
        first = claim(None)
        second = claim(first, 2)
        assert second.ranges == (EpochRange(2, 2, ROW_ID_MIN),)
        assert (second.epoch, second.owner) == (2, "n2")

    def test_a_claim_over_commits_adds_an_entry(self):
        at = row_id(5, 0)
        second = claim(control.committed(claim(None), at, token(9)), 2)
        assert second.ranges == (EpochRange(1, 1, ROW_ID_MIN), EpochRange(2, 2, at))

    def test_a_claim_over_a_release_extends(self):
        at = row_id(5, 0)
        released = control.released(control.committed(claim(None), at, token(9)), token(10))
        assert (released.owner, released.epoch) == ("", 2)
        assert claim(released, 3).ranges == (EpochRange(1, 3, ROW_ID_MIN),)

    def test_the_next_generation_begins_at_the_pointer(self):
        at = row_id(5, 0)
        first = control.edited(control.committed(claim(None), at, token(9)), token(10))
        deleted = control.tombstoned(first, owner="n1", generation=1, token=token(11))
        second = claim(deleted, 2, generation=2)
        assert second.epoch == 3
        assert second.ranges == (EpochRange(3, 3, at),)
        assert second.floor == second.pointer == at
        assert not second.has_committed()
        assert not second.counts(at, 3)
        assert second.counts(row_id(4, 0), 1) is False

    def test_generations_never_go_back(self):
        second = claim(claim(None), 2, generation=2)
        with pytest.raises(StaleGeneration):
            claim(second, 3, generation=1)
        with pytest.raises(StaleGeneration):
            control.tombstoned(second, owner="n", generation=1, token=token(4))

    def test_a_tombstone_is_not_claimed_unless_the_guard_is_off(self, monkeypatch):
        deleted = control.tombstoned(claim(None), owner="n", generation=1, token=token(2))
        with pytest.raises(Deleted):
            claim(deleted, 3)
        monkeypatch.setenv("BROKER_TESTING", "1")
        with guards.without("tombstone"):
            assert claim(deleted, 3).state is State.OPEN

    def test_a_payload_log_is_adopted_by_each_epoch_once(self):
        first = control.adopted(None, epoch=4, owner="a", generation=1)
        assert first.ranges == (EpochRange(4, 4, ROW_ID_MIN),)
        written = control.committed(first, row_id(3, 0), token(1))
        assert control.adopted(written, epoch=4, owner="a", generation=1) == written
        later = control.adopted(written, epoch=7, owner="b", generation=1)
        assert later.ranges[-1] == EpochRange(7, 7, row_id(3, 0))
        assert later.pointer == row_id(3, 0)


class TestFloor:
    def test_it_rises_up_to_the_pointer(self):
        current = control.committed(claim(None), row_id(5, 0), token(2))
        raised = control.floor_raised(current, row_id(3, 0), token(3))
        assert raised.floor == row_id(3, 0)
        assert control.floor_raised(raised, row_id(2, 0), token(4)).floor == row_id(3, 0)
        assert control.floor_raised(raised, ROW_ID_MAX, token(4)).floor == current.pointer


class TestResolving:
    mine = control.token_of(b"m" * HOLD_NONCE_BYTES, 3)
    before = control.token_of(b"m" * HOLD_NONCE_BYTES, 2)
    older = control.token_of(b"m" * HOLD_NONCE_BYTES, 1)
    foreign = control.token_of(b"f" * HOLD_NONCE_BYTES, 9)

    @pytest.mark.parametrize(
        ("epoch", "seen_token", "expected"),
        [
            (5, mine, Resolution.APPLIED),
            (5, before, Resolution.NOT_YET),
            (5, older, Resolution.BEHIND),
            (5, foreign, Resolution.STOPPED),
            (6, foreign, Resolution.FENCED),
            (4, foreign, Resolution.BEHIND),
        ],
    )
    def test_by_token_and_epoch(self, epoch, seen_token, expected):
        written = claim(None)._replace(epoch=5, token=self.mine)
        seen = claim(None)._replace(epoch=epoch, token=seen_token)
        assert resolve(written, self.before, seen) is expected

    def test_an_absent_row(self):
        written = claim(None)._replace(token=self.mine)
        assert resolve(written, None, None) is Resolution.NOT_YET
        assert resolve(written, self.before, None) is Resolution.BEHIND

    def test_which_of_two_rows_is_older(self):
        row = claim(None)._replace(token=self.before)
        assert control.is_older(row, row._replace(epoch=2, token=self.foreign))
        assert control.is_older(row, row._replace(token=self.mine))
        assert not control.is_older(row._replace(token=self.mine), row)
        assert not control.is_older(row, row)
        assert not control.is_older(row, row._replace(token=self.foreign))


class TestFencedBatches:
    def seen(self) -> Control:
        """Epoch 1 committed to 10; 2 committed nothing; 3 to 20; 4 holds it."""
        current = control.committed(claim(None), row_id(10, 0), token(2))
        current = claim(claim(current, 2), 3)
        return claim(control.committed(current, row_id(20, 0), token(4)), 4)

    @pytest.mark.parametrize(
        ("epoch", "last_ms", "expected"),
        [
            (1, 10, True),
            (1, 9, True),
            (1, 11, False),
            (2, 12, False),
            (3, 20, True),
            (3, 21, False),
        ],
    )
    def test_a_batch_counts_up_to_the_next_entry(self, epoch, last_ms, expected):
        seen = self.seen()
        verdict = control.batch_committed(
            seen, seen.ranges, epoch=epoch, generation=1, last=row_id(last_ms, 0)
        )
        assert verdict is expected

    def test_another_generation_says_nothing(self):
        seen = claim(self.seen(), 5, generation=2)
        assert (
            control.batch_committed(seen, seen.ranges, epoch=1, generation=1, last=row_id(5, 0))
            is None
        )

    def test_where_entries_are_gone_only_what_is_above_is_judged(self):
        seen = self.seen()
        left = seen.ranges[1:]
        above = control.batch_committed(seen, left, epoch=1, generation=1, last=row_id(15, 0))
        below = control.batch_committed(seen, left, epoch=1, generation=1, last=row_id(9, 0))
        assert (above, below) == (False, None)

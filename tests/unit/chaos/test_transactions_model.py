import random

import pytest

from broker.errors import OutcomeUnknown
from broker.model import POINTERS_PER_MS
from broker.testing.virtual_time import VirtualClock, simulate
from chaos.transactions_model import ModelService, NotInProgress, TransactionModel

NOW = 1_600_000_000_000
LATER = NOW + 1000


@pytest.fixture
def model():
    return TransactionModel(NOW - 1)


def begun(model, now_ms=NOW, timeout_ms=500):
    return model.begin(now_ms, timeout_ms).pointer


def test_a_pointer_is_the_start_time_or_the_next_number(model):
    first, second = begun(model), begun(model)
    assert first == NOW * POINTERS_PER_MS
    assert second == first + 1
    assert begun(model, NOW - 50) == second + 1


def test_a_transaction_in_progress_is_invisible_and_a_committed_one_visible(model):
    one, other = begun(model), begun(model)
    model.commit(NOW, other)
    snapshot = model.look(NOW)
    assert snapshot.is_visible(other)
    assert not snapshot.is_visible(one)
    assert snapshot.in_progress == [one]
    assert snapshot.first_short_in_progress == one


def test_a_snapshot_stays_as_it_was(model):
    one = begun(model)
    snapshot = model.begin(NOW, 500).snapshot
    model.commit(NOW, one)
    assert not snapshot.is_visible(one)
    assert model.look(NOW).is_visible(one)


def test_a_transaction_sees_its_own_writes(model):
    own = model.begin(NOW, 500)
    assert own.snapshot.is_visible(own.pointer)


def test_an_abort_makes_the_pointer_visible(model):
    pointer = begun(model)
    model.abort(NOW, pointer)
    assert model.look(NOW).is_visible(pointer)


def test_an_invalid_transaction_is_never_visible(model):
    pointer = begun(model)
    model.invalidate(NOW, pointer)
    assert model.look(NOW).is_invalid(pointer)
    with pytest.raises(NotInProgress):
        model.commit(NOW, pointer)


def test_a_timed_out_transaction_is_invalid_until_it_is_aborted(model):
    pointer = begun(model, timeout_ms=500)
    assert not model.look(NOW + 499).is_invalid(pointer)
    assert model.look(NOW + 500).is_invalid(pointer)
    with pytest.raises(NotInProgress):
        model.commit(NOW + 500, pointer)
    model.abort(NOW + 500, pointer)
    assert model.look(NOW + 500).is_visible(pointer)


def test_a_transaction_ends_once(model):
    pointer = begun(model)
    model.commit(NOW, pointer)
    for end in (model.commit, model.abort, model.invalidate):
        with pytest.raises(NotInProgress):
            end(NOW, pointer)


def test_an_answer_may_be_lost_after_the_call_was_done_or_before():
    async def main(loop):
        clock = VirtualClock(loop)
        carried_out = set()
        for seed in range(20):
            service = ModelService(clock, random.Random(seed), timeout_s=20, lost=1.0)
            with pytest.raises(OutcomeUnknown):
                await service.begin()
            carried_out.add(len(service.model.in_progress))
        assert carried_out == {0, 1}

    simulate(main)


def test_end_all_makes_all_transactions_invalid():
    async def main(loop):
        clock = VirtualClock(loop)
        service = ModelService(clock, random.Random(1), timeout_s=20, lost=0.0)
        pointers = [(await service.begin()).pointer for _ in range(3)]
        service.end_all()
        snapshot = await service.look()
        assert snapshot.invalids == pointers
        assert snapshot.in_progress == []

    simulate(main)

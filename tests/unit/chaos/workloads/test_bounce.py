import pytest

from chaos.history import of
from chaos.workloads.bounce import BounceWorkload
from tests.unit.chaos.workloads import lying
from tests.unit.chaos.workloads.lying import Lies
from tests.unit.chaos.workloads.played import play


@pytest.mark.slow
def test_leaders_are_moved_and_nothing_is_lost():
    verdict, calls = play(BounceWorkload())
    assert verdict.is_valid, verdict
    moves = [call for call in of(calls, "elect") if call.is_ok]
    assert len({call.asked["node"] for call in moves}) > 1
    assert len({call.epoch for call in of(calls, "publish") if call.is_ok}) > 1
    assert len({call.node for call in of(calls, "leader") if call.is_ok}) > 1


@pytest.mark.slow
def test_a_lying_broker_is_found():
    verdict, _ = play(BounceWorkload(), Lies("publish", write=lying.not_done), seconds=6)
    assert "lost_middle" in verdict.names, verdict

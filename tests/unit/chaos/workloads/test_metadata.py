import pytest

from chaos.workloads.metadata import MetadataWorkload
from tests.unit.chaos.workloads import lying
from tests.unit.chaos.workloads.lying import Lies
from tests.unit.chaos.workloads.played import play


def test_a_correct_broker_is_valid():
    played = play(MetadataWorkload())
    assert played.verdict.is_valid, played.verdict
    assert played.done == {"cas", "get"}
    assert any(call.outcome == "fail" for call in played.calls)


LIES = {
    "two have set it": ("lost_update", Lies("PUT", write=lying.done_anyway)),
    "not set": ("stale_value", Lies("PUT", write=lying.not_done)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_broker_is_found(lie):
    name, lies = LIES[lie]
    verdict, _ = play(MetadataWorkload(), lies, seconds=10)
    assert name in verdict.names, verdict


def test_the_final_read_of_a_register_is_repeated_after_a_refusal():
    _, calls = play(MetadataWorkload(), Lies("GET", every=5, ask=lying.refused_read), seconds=3)
    looks = [call for call in calls if call.process.startswith("final")]
    assert looks
    assert all(call.is_ok for call in looks)

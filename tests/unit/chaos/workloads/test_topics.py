import pytest

from chaos.history import of
from chaos.workloads import topics
from chaos.workloads.topics import TopicsWorkload
from tests.unit.chaos.workloads import lying
from tests.unit.chaos.workloads.lying import Lies
from tests.unit.chaos.workloads.played import play


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Make changes of topics more frequent."""
    monkeypatch.setattr(topics, "DELETE", 0.7)
    monkeypatch.setattr(topics, "PAUSES", 2)


def test_a_correct_broker_is_valid():
    played = play(TopicsWorkload(), seconds=30)
    assert played.verdict.is_valid, played.verdict
    assert {"create", "update", "delete", "publish", "read"} <= played.done
    assert any(call.outcome == "fail" for call in of(played.calls, "publish"))


pytestmark = pytest.mark.slow

LIES = {
    "lost": ("lost_middle", Lies("publish", write=lying.not_done)),
    "deleted is still there": ("old_rows", Lies("DELETE", every=1, write=lying.not_done)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_broker_is_found(lie):
    name, lies = LIES[lie]
    verdict, _ = play(TopicsWorkload(), lies, seconds=12)
    assert name in verdict.names, verdict

import pytest

from chaos.history import of
from chaos.workloads import transaction_clients
from chaos.workloads.transactions import TransactionsWorkload
from tests.unit.chaos.workloads import lying
from tests.unit.chaos.workloads.lying import Lies
from tests.unit.chaos.workloads.played import play


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Make more publishers undo their transactions."""
    monkeypatch.setattr(transaction_clients, "UNDONE", 0.4)


def test_a_correct_broker_is_valid():
    played = play(TransactionsWorkload(), seconds=30)
    assert played.verdict.is_valid, played.verdict
    ops = {"begin", "publish", "store", "reference", "rollback", "commit", "abort", "read"}
    assert ops <= played.done
    assert any(call.asked.get("snapshot") for call in of(played.calls, "read"))


pytestmark = pytest.mark.slow

LIES = {
    "stored is lost": ("lost_middle", Lies("store", write=lying.not_done)),
    "rollbacks are not done": ("rolled_back", Lies("rollback", every=1, write=lying.not_done)),
    "snapshots are ignored": ("dirty_read", Lies("poll", every=1, ask=lying.without_snapshot)),
    "messages are left out": ("lost_visible", Lies("poll", page=lying.without_a_middle)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_broker_is_found(lie):
    name, lies = LIES[lie]
    verdict, _ = play(TransactionsWorkload(), lies, seconds=10)
    assert name in verdict.names, verdict

"""``broker tx`` against a broker in its own process, whose transactions have a short life."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from broker.client import SyncClient
from broker.testing.broker_process import BrokerProcess
from tests.kit.commands import Run

LIVES = (
    *("--transaction-life-max", "3"),
    *("--sweep-interval", "0.1"),
    *("--sweep-rest", "0"),
    *("--sweep-margin", "0"),
    *("--transaction-sweep-interval", "0.05"),
    *("--transactions-reset-allowed", "true"),
)
DEADLINE_S = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tx") / "data", LIVES) as node:
        yield node


@pytest.mark.parametrize("reading", [("poll",), ("tail", "--no-follow")])
def test_a_reader_shows_only_committed_messages_if_asked(
    run: Run, node: BrokerProcess, reading: tuple[str, ...]
) -> None:
    topic = f"tx/{reading[0]}"
    with SyncClient(node.url) as client:
        client.create_topic(topic)
        client.publish(topic, "plain")
        begun = client.transactions.start(timeout_s=60).transaction_id
        client.publish(topic, "open", pointer=begun)
        assert run(*reading, topic)[:2] == (0, "plain\nopen\n")
        assert run(*reading, topic, "--committed")[:2] == (0, "plain\n")
        client.transactions.commit(begun)
        assert run(*reading, topic, "--committed")[:2] == (0, "plain\nopen\n")


def test_a_transaction_that_blocks_is_shown_and_ended(run: Run, node: BrokerProcess) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("tx/cli")
        began = client.transactions.start(timeout_s=60, client="cart").transaction_id
        client.publish("tx/cli", ["a", "b"], pointer=began)
        client.publish("tx/cli", ["c", "d", "e"])
        code, out, errors = run("tx", "blockers", "tx/cli")
        assert (code, str(began) in out, "cart" in out) == (0, True, True), out
        assert f"broker tx invalidate {began}" in errors
        code, out, _ = run("tx", "blockers", "tx/cli", "--json")
        (told,) = json.loads(out)["blockers"]
        assert (told["transaction"], told["messages"], told["waiting"]) == (str(began), 2, 4)
        code, out, errors = run("tx", "list")
        assert (code, f"{began}  short" in out) == (0, True), out
        assert "1 in progress" in errors
        assert json.loads(run("tx", "list", "--json")[1])["in_progress"][0]["client"] == "cart"
        assert "in progress" in run("tx", "show", str(began))[1]
        assert run("tx", "invalidate", str(began), "--json")[0] == 2
        code, out, _ = run("tx", "invalidate", str(began), "--yes", "--json")
        assert json.loads(out) == {"transaction": str(began), "invalidated": True}
        assert "no transaction holds consumers" in run("tx", "blockers", "tx/cli")[2]
        assert "was not in progress" in run("tx", "invalidate", str(began), "--yes")[2]
        assert "invalid" in run("tx", "show", str(began))[1]
        other = client.transactions.start().transaction_id
        assert run("tx", "abort", str(other), "--yes")[0] == 0
        code, _, errors = run("tx", "show", str(other))
        assert (code, "is not known" in errors) == (1, True)


def test_a_settled_transaction_is_pruned_and_its_messages_stay_hidden(
    run: Run, node: BrokerProcess
) -> None:
    with SyncClient(node.url) as client:
        client.create_topic("tx/pruned")
        client.create_topic("tx/empty")
        failed = client.transactions.start(timeout_s=0.2).transaction_id
        client.publish("tx/pruned", ["a", "b"], pointer=failed)
        client.publish("tx/pruned", "c")
        code, out, errors = run("tx", "prune")
        assert (code, "can be forgotten" in out) == (0, True)
        ends_s = time.monotonic() + DEADLINE_S
        while (plan := json.loads(run("tx", "prune", "--json")[1]))["newest_prunable"] != str(
            failed
        ):
            assert time.monotonic() < ends_s, plan
            client.poll("tx/empty", wait_s=0.3)
        assert "broker tx prune --yes" in run("tx", "prune")[2]
        code, out, errors = run("tx", "prune", "--yes")
        assert (code, "forgotten" in out, errors) == (0, True, "")
        snapshot = client.transactions.snapshot()
        assert not list(snapshot.invalids)
        assert [each.payload for each in client.poll("tx/pruned", snapshot=snapshot)] == [b"c"]
    node.kill()
    node.start()
    with SyncClient(node.url) as client:
        snapshot = client.transactions.snapshot()
        assert [each.payload for each in client.poll("tx/pruned", snapshot=snapshot)] == [b"c"]
        code, out, _ = run(*("storage", "show", "tx/pruned", "--dir", str(node.data_dir), "--json"))
        shown = {each["pointer"]: each["tx_state"] for each in json.loads(out)["entries"]}
        assert shown == {str(failed): "rolled_back", None: "none"}


def test_a_reset_says_what_it_shows_and_asks(run: Run, node: BrokerProcess) -> None:
    with SyncClient(node.url) as client:
        client.transactions.start(timeout_s=60)
        code, _, errors = run("tx", "reset", "--json")
        assert (code, "give --yes" in errors) == (2, True)
        code, out, _ = run("tx", "reset", "--yes", "--json")
        assert (code, json.loads(out)["in_progress"]) == (0, 1)
        code, _, errors = run("tx", "reset", "--yes")
        assert (code, "forgotten: 0 transactions in progress" in errors) == (0, True)
    assert "hidden messages become visible" in node.log()

"""Tephra's own Java client against this broker, and against Tephra's own server: the same answers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.config.sections import Config, ServerConfig, TransactionsConfig
from broker.model import POINTER_MAX
from tests.kit.fixtures import require
from tests.kit.served import ServedNode
from tests.kit.servers import JavaError, TephraCalls, TephraClient

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OURS, TEPHRA = "ours", "tephra"
CONFIG = Config(
    server=ServerConfig(port=0),
    transactions=TransactionsConfig(
        thrift_port=0, transaction_sweep_interval_s=0.05, transactions_reset_allowed=True
    ),
)
NEVER_MS = 99_999_999_999_999


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TephraClient]:
    require("tephra")
    with TephraClient(log_path=tmp_path_factory.mktemp("tephra") / "client.log") as client:
        yield client


@pytest.fixture(scope="module")
def ports(client: TephraClient) -> Iterator[dict[str, int]]:
    with ServedNode(CONFIG) as served:
        port = served.node.thrift_port
        assert port is not None
        yield {OURS: port, TEPHRA: client.serve()}


@pytest.fixture(params=[OURS, TEPHRA])
def call(
    client: TephraClient, ports: dict[str, int], request: pytest.FixtureRequest
) -> TephraCalls:
    """The client's calls to a server without transactions."""
    calls = client.at(ports[request.param])
    calls("reset")
    return calls


@pytest.fixture
def ours(client: TephraClient, ports: dict[str, int]) -> TephraCalls:
    calls = client.at(ports[OURS])
    calls("reset")
    return calls


def throws(name: str, run: Callable[[], object], *, says: str = "") -> None:
    with pytest.raises(JavaError) as thrown:
        run()
    assert thrown.value.simple_name == name, thrown.value
    assert says in str(thrown.value)


def participant(name: str, *changes: str, refuses: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "changes": list(changes), "refuses": list(refuses)}


def context(call: TephraCalls, name: str, *participants: dict[str, Any]) -> int:
    """Begin a transaction in a new context and return its id."""
    call("context_new", context=name, awares=list(participants))
    return int(call("context_start", context=name)["id"])


def test_a_transaction_commits(call: TephraCalls) -> None:
    first = call("start")
    assert first["write_pointer"] == first["id"] > first["read_pointer"]
    assert (first["type"], first["visibility"]) == ("SHORT", "SNAPSHOT")
    assert first["first_short"] == POINTER_MAX
    second = call("start", timeout=5)
    assert second["in_progress"] == [first["id"]]
    assert second["first_short"] == first["id"]
    call("can_commit", id=first["id"], changes=["6b", "ff00"])
    call("commit", id=first["id"])
    after = call("start")
    assert after["in_progress"] == [second["id"]]
    assert after["read_pointer"] == first["id"]
    throws("TransactionNotInProgressException", lambda: call("commit", id=first["id"]))
    throws(
        "TransactionNotInProgressException",
        lambda: call("can_commit", id=first["id"], changes=[]),
    )
    call("abort", id=second["id"])
    assert call("start")["in_progress"] == [after["id"]]


def test_a_context_commits_in_order(call: TephraCalls) -> None:
    begun = context(call, "c", participant("a", "01"), participant("b"))
    call("context_finish", context="c")
    asked = ["a.startTx", "b.startTx", "a.getTxChanges", "b.getTxChanges"]
    done = ["a.commitTx", "b.commitTx", "a.postTxCommit", "b.postTxCommit"]
    assert call("context_calls", context="c") == asked + done
    assert call("start")["read_pointer"] == begun


def test_conflicts_are_found(call: TephraCalls) -> None:
    one = context(call, "one", participant("a", "6b"))
    two = context(call, "two", participant("b", "6b", "6c"))
    call("context_finish", context="one")
    throws(
        "TransactionConflictException",
        lambda: call("context_finish", context="two"),
        says=f"Transaction {two} conflicts",
    )
    assert call("context_calls", context="two")[-1] == "b.rollbackTx"
    after = call("start")
    assert (after["in_progress"], after["invalids"]) == ([], [])
    assert after["read_pointer"] == max(one, two)


def test_a_conflict_names_its_key(call: TephraCalls) -> None:
    one, two = call("start")["id"], call("start")["id"]
    for each in (one, two):
        call("can_commit", id=each, changes=["6bff"])
    call("commit", id=one)
    throws(
        "TransactionConflictException",
        lambda: call("commit", id=two),
        says=r"on change key 'k\xFF'",
    )


def test_one_that_is_rolled_back_is_aborted(call: TephraCalls) -> None:
    begun = context(call, "c", participant("a"), participant("b", refuses=("commitTx",)))
    throws("TransactionFailureException", lambda: call("context_finish", context="c"), says="'b'")
    assert call("context_calls", context="c")[-2:] == ["a.rollbackTx", "b.rollbackTx"]
    after = call("start")
    assert after["read_pointer"] == begun
    assert after["invalids"] == []


def test_one_that_is_not_rolled_back_is_invalid(call: TephraCalls) -> None:
    begun = context(call, "c", participant("a", refuses=("commitTx", "rollbackTx")))
    throws("TransactionFailureException", lambda: call("context_finish", context="c"))
    assert call("start")["invalids"] == [begun]
    assert call("invalid_size") == 1


def test_a_context_goes_on_after_a_checkpoint(call: TephraCalls) -> None:
    begun = context(call, "c", participant("a"))
    after = call("context_checkpoint", context="c")
    assert after["id"] == begun < after["write_pointer"]
    assert after["checkpoints"] == [after["write_pointer"]]
    assert call("context_calls", context="c")[-2:] == ["a.commitTx", "a.updateTx"]
    assert call("start")["in_progress"] == [begun, after["write_pointer"]]
    call("context_finish", context="c")
    last = call("start")
    assert last["read_pointer"] == after["write_pointer"]
    assert begun not in last["in_progress"]


def test_long_transactions_become_invalid_when_they_are_aborted(call: TephraCalls) -> None:
    begun = call("start_long")
    assert begun["type"] == "LONG"
    assert call("start")["first_short"] == POINTER_MAX
    call("abort", id=begun["id"])
    assert call("start")["invalids"] == [begun["id"]]


def test_bad_time_outs_are_refused(call: TephraCalls) -> None:
    for timeout in (0, -5):
        throws("IllegalArgumentException", lambda given=timeout: call("start", timeout=given))
    throws("TApplicationException", lambda: call("old_start_timeout", timeout=0))


def test_invalid_ones_are_truncated(call: TephraCalls) -> None:
    one, two, three = (call("start")["id"] for _ in range(3))
    assert call("invalidate", id=one) is True
    assert call("invalidate", id=one) is False
    assert call("invalidate", id=two) is True
    assert call("invalid_size") == 2
    assert call("truncate", ids=[one, 5]) is True
    assert call("truncate", ids=[one, 5]) is False
    throws("InvalidTruncateTimeException", lambda: call("truncate_before", before_ms=NEVER_MS))
    call("abort", id=three)
    assert call("truncate_before", before_ms=1) is False
    assert call("truncate_before", before_ms=NEVER_MS) is True
    assert call("invalid_size") == 0


def test_a_snapshot_is_parsed(call: TephraCalls) -> None:
    gone = call("start")["id"]
    call("invalidate", id=gone)
    done = call("start")["id"]
    call("can_commit", id=done, changes=["01", "02"])
    short, long = call("start", timeout=50)["id"], call("start_long")["id"]
    call("can_commit", id=short, changes=["03"])
    call("commit", id=done)
    checkpoint = call("checkpoint", id=short)["write_pointer"]
    found = call("snapshot")
    assert found["invalids"] == [gone]
    assert (found["read_pointer"], found["write_pointer"]) == (done, checkpoint)
    assert found["committing"] == {str(short): ["03"]}
    assert found["committed"] == {str(long + 1): ["01", "02"]}
    entries = {int(key): value for key, value in found["in_progress"].items()}
    assert {key: value["type"] for key, value in entries.items()} == {
        short: "SHORT",
        long: "LONG",
        checkpoint: "CHECKPOINT",
    }
    assert entries[short]["checkpoints"] == [checkpoint]
    assert {value["upper_bound"] for value in entries.values()} == {done - 1}
    took_ms = entries[short]["expiration"] - short // 1_000_000
    assert abs(took_ms - 50_000) < 1_000
    assert abs(found["timestamp"] - short // 1_000_000) < 30_000


def test_the_other_calls_are_answered(call: TephraCalls) -> None:
    assert call("status") == "OK"
    call("prune")


def test_clients_of_earlier_releases_work(
    call: TephraCalls, request: pytest.FixtureRequest
) -> None:
    """Each of these calls has a connection of its own."""
    one, two = call("old_start_short")["id"], call("old_start_timeout", timeout=9)["id"]
    assert call("old_start_long")["type"] == "LONG"
    assert call("old_start_client", client="me")["type"] == "SHORT"
    assert call("old_start_with_timeout", timeout=9)["type"] == "SHORT"
    assert call("old_can_commit", id=one, changes=["aa"]) is True
    assert call("old_commit", id=one) is True
    assert call("old_can_commit", id=two, changes=["aa"]) is False
    if request.node.callspec.params["call"] == OURS:
        # The connection ended with the answer, so nothing shows that it arrived.
        assert call("old_commit", id=one) is True
    else:
        throws("TTransactionNotInProgressException", lambda: call("old_commit", id=one))


def test_one_whose_time_is_over_is_invalid(ours: TephraCalls) -> None:
    ours("context_new", context="c", awares=[participant("a")])
    begun = ours("context_start", context="c", timeout=1)["id"]
    until_s = time.monotonic() + 30
    while begun not in ours("start")["invalids"]:
        assert time.monotonic() < until_s, "the transaction is not over"
    throws("TransactionNotInProgressException", lambda: ours("context_finish", context="c"))
    # The transaction rolled back its writes.
    assert begun not in ours("start")["invalids"]


def test_a_change_set_that_is_too_large_is_refused(ours: TephraCalls) -> None:
    begun = ours("start")["id"]
    changes = [struct.pack(">i", number).hex() for number in range(10_001)]
    throws("TransactionSizeException", lambda: ours("can_commit", id=begun, changes=changes))


class LosingProxy:
    """Passes frames on to a port, and ends the connection instead of the first answer to one method."""

    def __init__(self, port: int, method: bytes) -> None:
        self._target = port
        self._method = method
        self.lost = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while request := frame(client):
                server.sendall(request)
                answer = frame(server)
                if self._method in request and not self.lost:
                    self.lost += 1
                    return
                client.sendall(answer)


def frame(connected: socket.socket) -> bytes:
    head = received(connected, 4)
    return head and head + received(connected, struct.unpack(">i", head)[0])


def received(connected: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        try:
            more = connected.recv(count - len(found))
        except OSError:
            return b""
        if not more:
            return b""
        found += more
    return found


@pytest.mark.parametrize("server", [OURS, TEPHRA])
def test_a_commit_whose_answer_is_lost(
    client: TephraClient, ports: dict[str, int], server: str
) -> None:
    """Tephra's client repeats the commit, and treats *not in progress* as a failure: it rolls back committed writes."""
    proxy = LosingProxy(ports[server], b"commitOrThrow\0")
    try:
        call = client.at(proxy.port)
        call("reset")
        begun = context(call, "c", participant("a", "01"))
        if server == OURS:
            call("context_finish", context="c")
        else:
            throws("TransactionNotInProgressException", lambda: call("context_finish", context="c"))
        assert proxy.lost == 1
        assert call("start")["read_pointer"] == begun
        last = call("context_calls", context="c")[-1]
        assert last == ("a.postTxCommit" if server == OURS else "a.rollbackTx")
    finally:
        proxy.close()

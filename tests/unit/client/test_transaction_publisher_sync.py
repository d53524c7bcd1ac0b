"""Transactions without asyncio: the same calls, and participants run in the thread of the block."""

# ruff: noqa: PT012 - The tests need whole blocks.

import inspect
import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broker.client import (
    SyncClient,
    SyncTransaction,
    Transaction,
    TransactionConflict,
    Undoable,
)
from broker.client.client_request import ClientRequest, Reply
from broker.model import TopicId
from tests.unit.client.stand_in import Foreign, OverHttp, Rules, Topics


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.split("?")[0].split("/")
        topic = TopicId(parts[3], parts[5]) if "topics" in parts else None
        with self.server.lock:
            reply = self.server.answer(
                ClientRequest(self.command, self.path, self.headers, body, topic)
            )
        if isinstance(reply, list):
            reply = Reply(200, {}, b"".join(reply))
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    do_POST = do_GET  # noqa: N815 - The base class calls this name.

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.lock = threading.Lock()
    server.topics = Topics()
    server.answer = OverHttp(server.topics)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(server):
    with SyncClient(f"http://127.0.0.1:{server.server_port}", namespace="ns") as client:
        yield client


class Participant:
    """Records its calls and their threads."""

    name = "mine"

    def __init__(self, fails=""):
        self.calls, self.threads, self.fails = [], set(), fails

    def _call(self, name, result=None):
        self.calls.append(name)
        self.threads.add(threading.current_thread())
        if name == self.fails:
            raise KeyboardInterrupt
        return result

    def start_tx(self, transaction):
        self._call("start_tx")

    def update_tx(self, transaction):
        self._call("update_tx")

    def changes(self):
        return self._call("changes", set())

    def commit_tx(self):
        return self._call("commit_tx", True)

    def post_commit(self):
        self._call("post_commit")

    def rollback_tx(self):
        return self._call("rollback_tx", True)


class Deciding(Participant):
    def decide_tx(self, transaction, published):
        self._call("decide_tx")
        self.published = [(topic.topic, [p.payload for p in parts]) for topic, parts in published]


@pytest.mark.slow
def test_a_block_commits_and_its_participants_run_in_its_thread(client, server):
    mine, deciding = Participant(), Deciding()
    with client.transaction(aware=[mine]) as tx:
        tx.add(deciding)
        tx.add(deciding)
        tx.publish("a", b"0")
        tx.checkpoint()
        tx.publish("a", b"1")
        assert tx.poll("a") == []
        assert tx.id == tx.snapshot.transaction_id == 1001
    assert tx.state == "committed"
    assert mine.threads == deciding.threads == {threading.current_thread()}
    assert [p for _, _, found in server.topics.published for p in found] == [b"0", b"1"]
    assert deciding.published == [("a", [b"0", b"1"])]
    assert deciding.calls == [
        *["start_tx", "commit_tx", "update_tx", "changes", "commit_tx", "decide_tx"],
        "post_commit",
    ]


def test_an_exception_rolls_back(client, server):
    mine = Participant()
    with pytest.raises(KeyError), client.transaction(aware=[mine]) as tx:
        tx.publish("a", b"0")
        raise KeyError
    assert (tx.state, mine.calls) == ("aborted", ["start_tx", "rollback_tx"])


@pytest.mark.slow
def test_an_interrupt_in_a_participant_rolls_back_and_goes_on(client, server):
    mine, fails = Participant(), Participant("commit_tx")
    with pytest.raises(KeyboardInterrupt), client.transaction(aware=[mine, fails]) as tx:
        tx.publish("a", b"0")
    assert (tx.state, server.topics.published) == ("aborted", [])
    assert mine.calls[-1] == fails.calls[-1] == "rollback_tx"
    with client.transaction() as tx:  # The client still works.
        tx.publish("a", b"0")
    assert tx.state == "committed"


class Plain(Rules):
    """A foreign service with plain methods."""


@pytest.mark.parametrize("make", [Plain, Foreign])
def test_a_foreign_service_may_be_plain_or_asynchronous(client, server, make):
    service = make()
    pair = Undoable(lambda: True, lambda: True)
    with client.transaction(service=service, aware=[pair]) as tx:
        tx.publish("a", b"0")
        tx.changes("k")
    rules = service if make is Plain else service.rules
    assert rules.committed == [(1002, {b"k"})]


@pytest.mark.slow
def test_conflicts_are_repeated(client, server):
    seen = []

    def work(tx):
        seen.append(tx)
        tx.changes("k")
        if len(seen) < 3:
            with client.transaction() as other:
                other.changes("k")
        return len(seen)

    assert client.in_transaction(work) == 3
    seen.clear()
    with pytest.raises(TransactionConflict):
        client.in_transaction(work, attempts_max=2)


def test_the_methods_are_those_of_the_transaction():
    for name, method in inspect.getmembers(Transaction, inspect.isfunction):
        if name.startswith("_"):
            continue
        blocking = getattr(SyncTransaction, name)
        assert inspect.signature(blocking).parameters == inspect.signature(method).parameters
        if name not in {"add", "changes"}:
            assert blocking.__doc__ == method.__doc__
            assert blocking.__qualname__ == f"SyncTransaction.{name}"
        assert not inspect.iscoroutinefunction(blocking)


INTERRUPTED = """
import json, sys, threading
from broker.client import SyncClient

class Service:
    def __init__(self):
        self.calls = []
    def start(self, **_):
        from broker.client import Snapshot
        return Snapshot(transaction_id=7, read_pointer=1)
    async def can_commit(self, *_):
        import asyncio
        print("up", flush=True)
        await asyncio.Event().wait()
    def abort(self, transaction_id):
        self.calls.append(("abort", threading.current_thread() is threading.main_thread()))

service = Service()
client = SyncClient("http://127.0.0.1:1")
try:
    with client.transaction(service=service):
        pass
except KeyboardInterrupt:
    client.close()
    print(json.dumps(service.calls))
"""


def test_ctrl_c_while_waiting_rolls_back_first():
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert json.loads(process.communicate(timeout=20)[0]) == [["abort", True]]
        assert process.returncode == 0

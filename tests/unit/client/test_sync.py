import asyncio
import inspect
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from broker.client import (
    Client,
    Published,
    Reading,
    Snapshot,
    Stage,
    SyncClient,
    SyncReading,
    SyncStage,
    SyncTransactionPublisher,
    TailOptions,
    TransactionPublisher,
    Unavailable,
    bridge,
)
from broker.model import Message
from broker.wire import avro
from tests.kit.poll_replies import page_of
from tests.kit.request_bodies import read_poll
from tests.unit.client import test_bulk

MESSAGES = [Message(bytes([0] * 7 + [i]) + bytes(12), b"%d" % i) for i in range(5)]


class Broker(BaseHTTPRequestHandler):
    """Answers polls with five messages in pages, publishes under a pointer with their path, others with an empty 200.

    It answers bulk reads with four messages in two batches.

    It sends only the beginning of its answer to a poll of ``endless``, and one event of a stream.
    """

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b""
        if "/endless" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"\x02")
            self.server.began.set()
            self.rfile.read(1)  # Until the client hangs up.
            self.close_connection = True
            return
        if "/publish" in self.path and avro.decode_publish_request(body, messages_max=9).pointer:
            answer = self.path.encode()
        if "/poll" in self.path:
            poll = read_poll(avro, body)
            page = [m for m in MESSAGES if poll.start is None or m.id > poll.start][: poll.limit]
            answer = page_of(page) + b"\x00"
        self.send_response(200)
        if "/publish" in self.path:
            self.send_header("Content-Type", avro.CONTENT_TYPE)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        if "/events" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'data: {"id": "%s", "payload": "0"}\n\n' % bytes(20).hex().encode())
            self.rfile.read(1)  # Until the client hangs up.
            self.close_connection = True
            return
        answer = test_bulk.stream([0, 1, 2], [3])
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broker)
    server.daemon_threads = True
    server.began = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_calls_block_until_they_are_answered(url):
    with SyncClient(url) as client:
        assert client.publish("ns1/t1", b"x") == Published()
        assert client.poll("ns1/t1") == MESSAGES


def test_the_methods_are_those_of_the_client_with_their_signatures_and_documentation():
    differing = {
        "tail_pages",
        "transaction",
        "in_transaction",
        "transaction_publisher",
        "close",
        "publish_later",
        "stage",
        "subscriber",
    }
    assert inspect.signature(SyncClient.close) == inspect.signature(Client.close)
    for name in ("transaction", "in_transaction", "transaction_publisher"):
        given = [inspect.signature(getattr(each, name)) for each in (SyncClient, Client)]
        assert list(given[0].parameters) == list(given[1].parameters)
    stages = [inspect.signature(each.store) for each in (SyncStage, Stage)]
    assert stages[0].parameters == stages[1].parameters
    assert SyncClient.subscriber is Client.subscriber
    later = [inspect.signature(each.publish_later) for each in (SyncClient, Client)]
    assert later[0].parameters == later[1].parameters
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if name.startswith("_") or name in differing:
            continue
        blocking = getattr(SyncClient, name)
        assert blocking.__doc__ == method.__doc__
        parameters = inspect.signature(blocking).parameters
        assert parameters == inspect.signature(method).parameters
        assert not inspect.iscoroutinefunction(blocking)
    assert str(inspect.signature(SyncClient.tail)).endswith("-> 'Generator[Message]'")
    assert SyncClient.poll.__qualname__ == "SyncClient.poll"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda client: client.tail("ns1/t1", follow=False), r"Client\.tail\(\).*follow"),
        (lambda client: client.events(), r"Client\.events\(\).*topic"),
        (lambda client: client.read("ns1/t1", upto=1), r"Client\.read\(\).*upto"),
        (lambda client: client.poll("ns1/t1", None, 3), r"Client\.poll\(\).* positional"),
        (lambda client: client.publish(), r"Client\.publish\(\).*topic"),
        (lambda client: client.subscriber("ns1/t1"), r"^subscriber\(\).*name"),
        (lambda client: client.subscriber("ns1/t1", "a", print, to=1), "no option to"),
        (lambda client: client.transaction(lable="x"), r"Client\.transaction\(\).*lable"),
        (lambda client: client.cursors.get("ns1/t1"), r"CursorCalls\.get\(\).*name"),
    ],
)
def test_an_error_of_a_call_names_the_door(call, told):
    blocking = f"^Sync{told}" if told[0] == "C" else told
    with SyncClient("http://127.0.0.1:1") as client, pytest.raises(TypeError, match=blocking):
        call(client)
    with pytest.raises(TypeError, match=told):
        call(Client("http://127.0.0.1:1"))


def test_a_reading_has_the_methods_of_the_clients():
    for name, method in inspect.getmembers(Reading, inspect.isfunction):
        if not name.startswith("_"):
            blocking = getattr(SyncReading, name)
            assert inspect.signature(blocking).parameters == inspect.signature(method).parameters
            assert blocking.__doc__ == method.__doc__
    assert str(inspect.signature(SyncClient.read)).endswith("-> 'SyncReading'")


def test_a_transaction_has_the_methods_of_the_clients():
    for name, method in inspect.getmembers(TransactionPublisher, inspect.isfunction):
        if not name.startswith("_"):
            blocking = getattr(SyncTransactionPublisher, name)
            assert inspect.signature(blocking).parameters == inspect.signature(method).parameters
            assert blocking.__doc__ == method.__doc__
            assert blocking.__qualname__ == f"SyncTransactionPublisher.{name}"


def test_a_transaction_is_published_and_rolled_back(url):
    snapshot = Snapshot(transaction_id=7, read_pointer=7)
    with SyncClient(url) as client:
        transaction = client.transaction_publisher(7, snapshot)
        assert (transaction.pointer, transaction.snapshot) == (7, snapshot)
        assert (
            transaction.publish("ns1/t1", b"x").rollback == b"/v1/namespaces/ns1/topics/t1/publish"
        )
        assert transaction.poll("ns1/t1") == MESSAGES
        assert transaction.rollback()


def test_many_threads_share_a_client(url):
    with SyncClient(url) as client, ThreadPoolExecutor(8) as pool:
        published = list(pool.map(lambda i: client.publish("ns1/t1", str(i)), range(100)))
    assert published == [Published()] * 100


def test_a_tail_is_iterated_and_can_be_left(url):
    with SyncClient(url) as client:
        tail = client.tail("ns1/t1", options=TailOptions(page_messages_max=2))
        assert [next(tail) for _ in range(3)] == MESSAGES[:3]
        tail.close()
        rest = client.tail("ns1/t1", MESSAGES[2].id, options=TailOptions(follow=False))
        assert list(rest)[-1] == MESSAGES[-1]


def test_a_tail_that_was_not_left_does_not_hinder_the_close(url):
    with SyncClient(url) as client:
        tail = client.tail("ns1/t1", options=TailOptions(page_messages_max=2))
        next(tail)
    tail.close()


class Caller:
    """A call in its own daemon thread."""

    def __init__(self, call):
        self._call = call
        self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._call()
        except (Unavailable, CancelledError) as error:
            self._error = error

    def error(self):
        """Wait for the end of the call, and return its error."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "the call has not ended"
        return self._error


def test_a_close_ends_a_call_whose_answer_is_arriving(server, url):
    client = SyncClient(url, deadline_s=60)
    calling = Caller(lambda: client.poll("ns1/endless"))
    assert server.began.wait(20)
    client.close()
    assert isinstance(calling.error(), Unavailable)


def test_a_close_cancels_a_call_that_does_not_end(url, monkeypatch):
    monkeypatch.setattr(bridge, "ENDING_S", 0.01)
    began = threading.Event()

    class Endless:
        async def start(self, **_):
            began.set()
            await asyncio.Event().wait()

    client = SyncClient(url)
    calling = Caller(client.transaction(service=Endless()).__enter__)
    assert began.wait(20)
    client.close()
    assert isinstance(calling.error(), CancelledError)


def test_publishing_later_gives_a_future(url):
    with SyncClient(url) as client:
        answer = client.publish_later("ns1/t1", b"x")
        client.flush()
        assert answer.result(5) == Published()
        assert client.later_counts.published == 1
    assert client.later_counts.published == 1


def test_messages_that_a_close_gives_up_are_counted():
    client = SyncClient("http://127.0.0.1:1", deadline_s=60)
    assert client.later_counts.accepted == 0
    answer = client.publish_later("ns1/t1", b"x")
    client.close(flush_s=0)
    counts = client.later_counts
    assert (counts.accepted, counts.refused + counts.unknown) == (1, 1)
    assert answer.exception(5) is not None


def test_a_pickled_client_keeps_its_settings(url):
    with SyncClient(url, namespace="ns1") as client:
        client.poll("t1")
        copy = pickle.loads(pickle.dumps(client))
    assert copy.settings == client.settings
    with copy:
        assert copy.poll("t1") == MESSAGES


def test_errors_come_through_and_a_closed_client_says_so():
    client = SyncClient("http://127.0.0.1:1", deadline_s=0.05)
    with pytest.raises(Unavailable):
        client.publish("ns1/t1", b"x")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.publish("ns1/t1", b"x")


def test_a_client_that_can_not_be_made_leaves_no_thread():
    client = SyncClient("https://127.0.0.1:8080", ca_file="missing.pem")
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"'missing\.pem' can't be read as a PEM file .*: No such file"
        ):
            client.publish("ns1/t1", b"x")
    assert set(threading.enumerate()) <= before
    client.close()


def test_ctrl_c_ends_a_call_that_blocks():
    program = (
        "import sys\n"
        "from broker.client import SyncClient\n"
        "client = SyncClient('http://127.0.0.1:1', deadline_s=60)\n"
        "client.publish_later('a/b', b'x')\n"
        "try:\n"
        "    print('up', flush=True)\n"
        "    client.publish('a/b', b'x')\n"
        "except KeyboardInterrupt:\n"
        "    client.close(flush_s=0)\n"
        "    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 7


def test_arrow_record_batches_are_read(url):
    with SyncClient(url) as client:
        batches = list(client.read_arrow("ns1/t1", through=test_bulk.THROUGH))
    assert [test_bulk.numbers_in(batch) for batch in batches] == [[0, 1, 2], [3]]

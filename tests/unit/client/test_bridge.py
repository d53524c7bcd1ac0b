"""The bridge between the threads of a program and the loop of a blocking client, at the client's methods."""

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from broker.client import Published, SyncClient, TailOptions, Trouble
from broker.client.bridge import Bridge
from tests.unit.client.stand_in import Foreign
from tests.unit.client.test_sync import MESSAGES, Caller, server, url

__all__ = ["server", "url"]
PAGES = TailOptions(page_messages_max=2)


def run_program(program: str, *arguments: str) -> str:
    """Run a program to its end; return what it wrote."""
    done = subprocess.run(
        # From Python 3.12 on, a fork of a program with threads warns.
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PROGRAM = """
import sys, threading
from broker.client import SyncClient, TailOptions
client = SyncClient(sys.argv[1])
tail = client.tail("ns1/t1", options=TailOptions(page_messages_max=2))
print(next(tail).payload)
"""
READ = """
import asyncio
from broker.client import Client
async def read():
    global own, events, more
    own = Client(sys.argv[1])
    events, *more = [own.events('ns1/t1') for _ in range(4)]
    for each in events, *more:
        await anext(each)
"""
OPEN = {
    "tail": "",
    "events": "events = client.events('ns1/t1'); next(events)",
    "closed events": "events = client.events('ns1/t1'); next(events); client.close()",
    "reading": "pages = client.read_arrow('ns1/t1', through='00' * 20); next(pages)",
    "later": "client.publish_later('ns1/t1', b'x')",
    "a thread": "threading.Thread(target=list, args=(client.events('ns1/t1'),), daemon=True).start()",
    "a subscriber": "mine = client.subscriber('ns1/t1', 'c', print)\n"
    "threading.Thread(target=mine.run, daemon=True).start()",
    "an iterator of a former loop": READ
    + "loop = asyncio.new_event_loop(); loop.run_until_complete(read()); loop.close()\n"
    + "asyncio.run(events.aclose())",
    "iterators of a loop": READ + "asyncio.run(read())",
}


@pytest.mark.parametrize("name", OPEN)
def test_a_program_ends_without_a_word_whatever_is_open(url, name):
    assert run_program(PROGRAM + OPEN[name], url) == "b'0'\n"


def test_a_client_that_is_used_after_the_end_says_so(url):
    kept = (
        "class Late:\n"
        "    def __init__(self, client): self.client = client\n"
        "    def __del__(self):\n"
        "        try: self.client.publish('ns1/t1', b'x')\n"
        "        except RuntimeError as error: print(error)\n"
        "late = Late(client)\n"
        "late.itself = late\n"
    )
    assert "closed" in run_program(PROGRAM + kept, url)


def test_an_iterator_that_is_collected_in_the_loops_thread_is_closed(url):
    with SyncClient(url) as client:
        tail = client.tail("ns1/t1", options=PAGES)
        assert next(tail) == MESSAGES[0]
        kept = [tail]
        del tail
        done: Future[None] = Future()

        def collect(_):
            kept.clear()
            gc.collect()
            done.set_result(None)

        client.publish_later("ns1/t1", b"x").add_done_callback(collect)
        client.flush()
        done.result(20)
        assert client.publish("ns1/t1", b"x") == Published()


def test_a_done_callback_may_publish_later_but_not_wait(url):
    told: list[BaseException] = []
    again: Future[Future[Published]] = Future()

    def published(_):
        try:
            client.publish("ns1/t1", b"y")
        except RuntimeError as error:
            told.append(error)
        again.set_result(client.publish_later("ns1/t1", b"z"))

    with SyncClient(url) as client:
        client.publish_later("ns1/t1", b"x").add_done_callback(published)
        assert again.result(20).result(20) == Published()
    assert "client's own thread" in str(told[0])


def test_trouble_is_told_where_the_client_can_not_wait():
    told: Future[str] = Future()

    def on_trouble(_: Trouble):
        if not told.done():
            with pytest.raises(RuntimeError, match="own thread") as caught:
                client.close()
            told.set_result(str(caught.value))

    with SyncClient("http://127.0.0.1:1", deadline_s=60, on_trouble=on_trouble) as client:
        client.publish_later("ns1/t1", b"x")
        assert told.result(20)
        client.close(flush_s=0)


def test_a_subscriber_may_be_stopped_after_the_close(url):
    client = SyncClient(url)
    subscriber = client.subscriber("ns1/t1", "me", print)
    client.close()
    subscriber.stop()
    with pytest.raises(RuntimeError, match="closed"):
        subscriber.run()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_on_the_loop_reaches_its_caller_and_the_loop_goes_on(error):
    async def exits():
        raise error

    async def works():
        return 7

    bridge = Bridge()
    try:
        with pytest.raises(type(error)):
            bridge.wait(exits())
        assert bridge.wait(works()) == 7
    finally:
        bridge.end()


def test_calls_while_the_bridge_ends_are_done_or_refused():
    async def works():
        return 7

    bridge = Bridge()
    begun = threading.Barrier(5)
    answers: list[int] = []

    def call():
        begun.wait()
        try:
            while True:
                answers.append(bridge.wait(works()))
        except RuntimeError as error:
            assert "closed" in str(error)  # noqa: PT017 - Many may end.

    callers = [Caller(call) for _ in range(4)]
    begun.wait()
    bridge.end()
    for caller in callers:
        assert caller.error() is None


@pytest.mark.parametrize(
    "error", [StopIteration(3), asyncio.CancelledError("own"), GeneratorExit()]
)
def test_a_participant_may_raise_anything(url, error):
    class Plain:
        def start(self, **_):
            raise error

    with SyncClient(url) as client, pytest.raises((type(error), RuntimeError)):
        client.transaction(service=Plain()).__enter__()


def test_a_transaction_of_a_closed_client_says_so_and_leaves_no_call_behind(url, recwarn):
    client = SyncClient(url)
    transaction = client.transaction(service=Foreign())
    transaction.__enter__()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        transaction.publish("ns1/t1", b"x")
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_after_a_fork_the_parts_of_a_client_say_that_they_are_the_parents(url):
    forking = (
        "import os\n"
        "later = client.subscriber('ns1/t1', 's', print)\n"
        "if (child := os.fork()) == 0:\n"
        "    for call in (lambda: list(tail), later.run, lambda: [client.poll('ns1/t1')] * 0):\n"
        "        try: call()\n"
        "        except RuntimeError as error: print(error)\n"
        "else: os.waitpid(child, 0)\n"
    )
    told = run_program(PROGRAM.replace("print(next", "(next") + forking, url)
    assert told == "This was made before a fork. Make it anew in the child process.\n" * 2

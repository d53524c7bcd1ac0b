"""Handlers that are not asynchronous: whatever they raise is one failed try, in the blocking client and in threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker.client import Client, Message, SyncClient
from tests.kit.served import ServedNode

QUICK: dict[str, Any] = {"tries_max": 2, "retry_delay_min_s": 0.0, "retry_delay_max_s": 0.0}
DEADLINE_S = 30.0


class OwnEnd(BaseException):
    """An end of user code that is no Exception."""


ENDS = [
    StopIteration(),
    StopAsyncIteration(),
    GeneratorExit(),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    concurrent.futures.InvalidStateError(),
    OwnEnd(),
    ValueError("\ud800"),
]


class Memory:
    """A store whose methods are not asynchronous."""

    def __init__(self) -> None:
        self.after: bytes | None = None
        self.threads: set[int] = set()

    def load(self) -> bytes | None:
        self.threads.add(threading.get_ident())
        return self.after

    @contextmanager
    def work(self, after: bytes) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        yield
        self.threads.add(threading.get_ident())
        self.after = after


@pytest.fixture(scope="module")
def topics(node: ServedNode) -> Iterator[SyncClient]:
    with SyncClient(node.url) as client:
        yield client


def filled(client: SyncClient, name: str, payloads: list[bytes]) -> str:
    topic = f"threads/{name}"
    client.create_topic(topic)
    client.publish(topic, payloads)
    return topic


@pytest.mark.parametrize("stored", [False, True], ids=["cursor", "store"])
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "thread"])
def test_any_end_of_a_handler_is_one_failed_try(
    node: ServedNode, topics: SyncClient, *, blocking: bool, stored: bool
) -> None:
    name = f"ends-{blocking}-{stored}"
    topic = filled(topics, name, [*(b"%d" % number for number in range(len(ENDS))), b"good"])
    place: dict[str, Any] = {"place": Memory()} if stored else {}

    async def in_loop() -> Any:
        loop = asyncio.get_running_loop()
        async with Client(node.url) as client:

            def handler(message: Message, *_: Any) -> None:
                handle(message, lambda: loop.call_soon_threadsafe(made.stop))

            made = client.subscriber(topic, "s", handler, **place, **QUICK)
            async with asyncio.timeout(DEADLINE_S):
                await made.run()
            return made

    def handle(message: Message, stop: Any) -> None:
        if message.payload != b"good":
            raise ENDS[int(message.payload)]
        stop()

    if blocking:
        made: Any = topics.subscriber(
            topic, "s", lambda message, *_: handle(message, made.stop), **place, **QUICK
        )
        made.run()
    else:
        made = asyncio.run(in_loop())
    assert (made.counts.failed, made.counts.dead_letters) == (2 * len(ENDS), len(ENDS))
    assert topics.cursors.get(topic, "s").data == ""
    if stored:
        assert place["place"].after == topics.poll(topic)[-1].id
        assert len(place["place"].threads) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["blocking", "async in blocking", "thread"])
def test_what_ends_the_program_lets_the_claim_go(
    node: ServedNode, topics: SyncClient, kind: str, error: BaseException
) -> None:
    topic = filled(topics, f"exits-{kind.replace(' ', '-')}-{type(error).__name__}", [b"0", b"1"])

    def handler(message: Message) -> None:
        if message.payload == b"1":
            raise error

    async def async_handler(message: Message) -> None:
        handler(message)

    async def in_loop() -> None:
        async with Client(node.url) as client:
            await client.subscriber(topic, "s", handler).run()

    given = handler if kind == "blocking" else async_handler
    blocking = topics.subscriber(topic, "s", given).run
    with pytest.raises(type(error)):
        asyncio.run(in_loop()) if kind == "thread" else blocking()
    cursor = topics.cursors.get(topic, "s")
    assert cursor.lag is not None
    assert cursor.lag.messages == 1
    assert "holder" not in cursor.data
    assert topics.topic(topic)  # The client goes on.


def test_a_blocking_handler_that_does_not_end_loses_its_place(
    node: ServedNode, topics: SyncClient
) -> None:
    topic = filled(topics, "stuck", [b"0", b"1"])
    gate, begun, handled = threading.Event(), threading.Event(), []
    store = Memory()

    def stuck(message: Message, _: Any) -> None:
        begun.set()
        gate.wait(DEADLINE_S)

    def handle(message: Message, _: Any) -> None:
        handled.append(message.payload)
        if message.payload == b"1":
            second.stop()

    first = topics.subscriber(topic, "s", stuck, place=store, handler_timeout_s=0.05, takeover_s=1)
    running = threading.Thread(target=first.run, daemon=True)
    running.start()
    assert begun.wait(DEADLINE_S)
    second = topics.subscriber(topic, "s", handle, place=store, takeover_s=1)
    second.run()
    after = store.after
    first.stop()
    gate.set()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    assert handled == [b"0", b"1"]
    assert after == store.after  # The late handler's context did not store a place.
    assert (first.counts.handled, first.counts.failed) == (0, 1)


def test_a_handler_that_closes_its_client_ends_run_with_the_reason(
    node: ServedNode, topics: SyncClient
) -> None:
    topic = filled(topics, "closes", [b"1"])
    client = SyncClient(node.url)
    with pytest.raises(RuntimeError, match="This client is closed"):
        client.subscriber(topic, "s", lambda _: client.close()).run()

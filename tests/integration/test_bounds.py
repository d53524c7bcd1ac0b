"""With many hostile clients at once, memory stays under a stated limit and publishes go on."""

import asyncio
import gzip
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.model import Poll, PublishRequest
from broker.testing.broker_process import BrokerProcess
from broker.wire import avro
from tests.kit.attacked import AVRO, memory_bytes, request
from tests.kit.serving import Answered, RawHttp, topic_path

IDLE = 10_000
SLOW_READERS = 1_000
BOMBS = 20
ENDLESS_HEADS = 500
IN_SHORT = 0.2
"""The share of the clients in a run that is not nightly."""
PEAK_BYTES_MAX = 1_100 * 1024 * 1024
"""The most memory that a node may need; the documentation has the same figure."""
FILES_NEEDED = IDLE + SLOW_READERS + ENDLESS_HEADS + 500
DEADLINE_S = 60.0
PUBLISHES_MIN = 300
"""The fewest publishes for a percentile."""

MESSAGE = avro.encode_publish_request(PublishRequest(None, [b"x" * 256]))
POLL = avro.encode_poll(Poll())

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        pytest.skip(f"the limit of open files is {hard}; {FILES_NEEDED} are needed")
    wanted = max(soft, FILES_NEEDED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def broker(many_files: None, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        async with RawHttp(process.port) as raw:
            await raw.send(request("PUT", topic_path("t")))
            assert (await raw.reply()).status == 200
            big = avro.encode_publish_request(PublishRequest(None, [b"y" * 4000] * 5000))
            await raw.send(request("POST", topic_path("t", "publish"), big, AVRO))
            assert (await raw.reply()).status == 200
        yield process


class Publisher:
    """Publishes one message after the other, and keeps the latencies."""

    def __init__(self, port: int, publishes_min: int) -> None:
        self._port = port
        self._publishes_min = publishes_min
        self.times_ms: list[float] = []
        self.progress = asyncio.Event()

    async def run(self) -> None:
        publish = request("POST", topic_path("other", "publish"), MESSAGE, AVRO)
        async with RawHttp(self._port) as raw:
            await raw.send(request("PUT", topic_path("other")))
            assert (await raw.reply()).status == 200
            while True:
                began = time.perf_counter()
                await raw.send(publish)
                assert (await raw.reply()).status == 200
                self.times_ms.append((time.perf_counter() - began) * 1000)
                self.progress.set()

    async def during(self, attack: Awaitable[Any]) -> tuple[Any, str]:
        """Await ``attack``; return its result and the latencies of publishes during it and right after it."""
        before = len(self.times_ms)
        done = await attack
        async with asyncio.timeout(DEADLINE_S):
            while len(self.times_ms) < before + self._publishes_min:
                self.progress.clear()
                await self.progress.wait()
        times = self.times_ms[before:]
        p99_ms = statistics.quantiles(times, n=100)[-1]
        return done, f"p50 {statistics.median(times):.1f} ms, p99 {p99_ms:.1f} ms of {len(times)}"


@asynccontextmanager
async def publishing(port: int, publishes_min: int) -> AsyncIterator[Publisher]:
    publisher = Publisher(port, publishes_min)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def in_groups(count: int, act: Callable[[], Awaitable[Any]], group: int) -> list[Any]:
    done: list[Any] = []
    while len(done) < count:
        done += await asyncio.gather(*(act() for _ in range(min(group, count - len(done)))))
    return done


async def idle(stack: AsyncExitStack, port: int) -> None:
    raw = await stack.enter_async_context(RawHttp(port))
    await raw.send(request("GET", "/ping"))
    assert (await raw.reply()).status == 200


async def slow_reader(stack: AsyncExitStack, port: int) -> None:
    raw = await stack.enter_async_context(RawHttp(port, receive_buffer=4096))
    await raw.send(request("POST", topic_path("t", "poll"), POLL, AVRO))
    assert await raw.line() == b"HTTP/1.1 200 OK\r\n"


async def bomb(port: int, body: bytes) -> Answered:
    async with RawHttp(port) as raw:
        headers = (AVRO, "Content-Encoding: gzip")
        await raw.send(request("POST", topic_path("t", "publish"), body, *headers))
        return await raw.reply()


async def endless_head(stack: AsyncExitStack, port: int) -> bool:
    """Send headers as long as the broker takes them; return whether the broker refused."""
    raw = await stack.enter_async_context(RawHttp(port))
    try:
        await raw.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(5000):
            await raw.send(b"X-%d: " % number + b"z" * 1000 + b"\r\n")
    except ConnectionError:
        return True
    return await raw.line() in (b"", b"HTTP/1.0 400 Bad Request\r\n")


@pytest.mark.parametrize("share", [IN_SHORT, pytest.param(1.0, marks=pytest.mark.nightly)])
async def test_everything_at_once(
    broker: BrokerProcess,
    record_testsuite_property: Callable[[str, object], None],
    share: float,
) -> None:
    port = broker.port
    told: dict[str, str] = {}

    def tell(name: str, times: str) -> None:
        resident = memory_bytes(broker.pid, "VmRSS") >> 20
        told[name] = f"{resident} MiB; publishing {times}"
        record_testsuite_property(name, told[name])

    packed = gzip.compress(bytes(512 << 20), 1)
    async with publishing(port, int(PUBLISHES_MIN * share)) as publisher, AsyncExitStack() as stack:
        for name, count, act, group in (
            ("nothing else", 0.0, lambda: idle(stack, port), 1),
            ("idle connections", IDLE, lambda: idle(stack, port), 200),
            ("slow readers", SLOW_READERS, lambda: slow_reader(stack, port), 200),
            ("gzip bombs", BOMBS, lambda: bomb(port, packed), 5),
            ("endless heads", ENDLESS_HEADS, lambda: endless_head(stack, port), 100),
        ):
            number = int(count * share)
            done, times = await publisher.during(in_groups(number, act, group))
            tell(f"{number} {name}" if number else name, times)
            if name == "gzip bombs":
                # Several bodies together may reach the common limit before one of them reaches its own.
                assert 413 in {reply.status for reply in done} <= {413, 503}
            if name == "endless heads":
                assert all(done)
    peak = memory_bytes(broker.pid, "VmHWM")
    told["peak"] = f"{peak >> 20} MiB"
    assert peak < PEAK_BYTES_MAX, told
    print("\n" + "\n".join(f"{name}: {figure}" for name, figure in told.items()))  # noqa: T201

"""A broker whose clock is set back and forth while it runs, and between its starts.

libfaketime changes only the wall clock of the broker's process. The boot clock stays true, and the broker judges the wall
clock by it: it follows a jump after a minute. A broker that starts believes the wall clock at once.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Client, Message
from broker.testing.broker_process import BrokerProcess
from chaos.clocks import ClockOffsets

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HOUR_S = 3600
STEPS_S = (HOUR_S, -HOUR_S, 30, 30 * 24 * HOUR_S, -5, -30 * 24 * HOUR_S, 0)
TOPICS = ("a", "b", "c")
MESSAGES_A_STEP = 60
DEADLINE_S = 60.0
TOLERANCE_MS = 60_000
"""The tolerance for a loaded machine; the steps are hours."""


class WallClock:
    """The settable wall clock of processes that run with ``environment``."""

    def __init__(self, folder: Path) -> None:
        self._offsets = ClockOffsets(folder)
        self.environment = self._offsets.environment("broker")

    def set(self, offset_s: int) -> None:
        """Set the error of the clock from now on."""
        self._offsets.set("broker", offset_s)


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clocks")


@pytest.fixture
def broker(tmp_path: Path, clock: WallClock) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environment=clock.environment) as broker:
        yield broker


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Publisher:
    """Publishes numbered messages to all topics until it is stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self._grown = asyncio.Condition()

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def run(self, topic: str) -> None:
        while True:
            payload = b"%s-%d" % (topic.encode(), len(self.acknowledged[topic]))
            await self._client.publish(topic, payload)
            self.acknowledged[topic].append(payload)
            async with self._grown:
                self._grown.notify_all()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S), self._grown:
            await self._grown.wait_for(lambda: self.count >= count)


def assert_in_order(messages: list[Message], payloads: list[bytes]) -> None:
    assert [message.payload for message in messages] == payloads
    ids = [message.id for message in messages]
    assert all(earlier < later for earlier, later in itertools.pairwise(ids))


def test_the_boot_clock_stays_true(clock: WallClock, tmp_path: Path) -> None:
    """The guard needs this property of libfaketime. Without it these tests would test nothing."""
    script = tmp_path / "clocks.py"
    script.write_text(
        "import time\n"
        "print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())\n"
    )
    clock.set(HOUR_S)
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    wall_s, boot_s, monotonic_s = map(float, run_python(script, clock.environment).split())
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before_s <= boot_s <= after_s
    assert before_s <= monotonic_s <= after_s
    assert abs(wall_s * 1000 - now_ms() - HOUR_S * 1000) < TOLERANCE_MS


def run_python(script: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, str(script)]
    result = subprocess.run(
        command, env=os.environ | environment, check=True, capture_output=True, text=True
    )
    return result.stdout


async def test_steps_under_load_lose_nothing(broker: BrokerProcess, clock: WallClock) -> None:
    began_ms = now_ms()
    async with Client(broker.url) as client:
        for topic in TOPICS:
            await client.create_topic(topic, ttl_s=600)
        publisher = Publisher(client)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(publisher.run(topic)) for topic in TOPICS]
            for offset_s in STEPS_S:
                clock.set(offset_s)
                await publisher.reach(publisher.count + MESSAGES_A_STEP)
                # The ttl is ten minutes. If the broker had followed the jump, all messages would have expired.
                assert len(await client.poll(TOPICS[0], limit=10)) == 10
            for task in tasks:
                task.cancel()
        for topic, payloads in publisher.acknowledged.items():
            messages = await client.poll(topic)
            # The last message of a topic may have been stored without an answer to its publisher.
            assert_in_order(messages[: len(payloads)], payloads)
            assert len(messages) <= len(payloads) + 1
            times_ms = [message.timestamp_ms for message in messages]
            assert began_ms - TOLERANCE_MS < times_ms[0]
            assert times_ms[-1] < now_ms() + TOLERANCE_MS


async def test_a_start_under_another_clock_keeps_the_order(
    broker: BrokerProcess, clock: WallClock
) -> None:
    payloads: list[bytes] = []
    for number, offset_s in enumerate((0, -HOUR_S, 2 * HOUR_S, -24 * HOUR_S, 0)):
        clock.set(offset_s)
        if number:
            broker.kill() if number % 2 else broker.stop()
            broker.start()
        async with Client(broker.url) as client:
            if not payloads:
                await client.create_topic("t", ttl_s=7 * 24 * HOUR_S)
            for _ in range(5):
                payloads.append(b"%d at %d" % (len(payloads), offset_s))
                await client.publish("t", payloads[-1])
            messages = await client.poll("t")
            assert_in_order(messages, payloads)
    ahead_ms = messages[-1].timestamp_ms - now_ms()
    assert abs(ahead_ms - 2 * HOUR_S * 1000) < TOLERANCE_MS, (
        "ids stay above the latest time that the clock had"
    )


async def test_expiry_goes_by_the_clock_that_a_broker_starts_with(
    broker: BrokerProcess, clock: WallClock
) -> None:
    async with Client(broker.url) as client:
        await client.create_topic("t", ttl_s=HOUR_S)
        await client.publish("t", [b"a", b"b"])
        both = await client.poll("t")
    for offset_s, seen in ((2 * HOUR_S, []), (-2 * HOUR_S, both), (0, both)):
        clock.set(offset_s)
        broker.kill()
        broker.start()
        async with Client(broker.url) as client:
            # Expired messages are not removed at once, so a wrong clock at a start does no harm.
            assert await client.poll("t") == seen, f"started {offset_s} s off"

"""Run a broker under attack in its own process, beside a neighbour whose publishes must not become slow.

An attack is anything that a client sends. A broker withstands an attack if, during it::

    publishes of the neighbour    all are answered with 200, and can be read afterwards;
                                  99 of 100 take at most 3 x as long as without the attack
    event loop                    never blocked for longer than LOOP_BLOCKED_S_MAX
    memory, lines of the log      stay below a bound that the test gives
    process                       lives, and logs no traceback

A round measures the latency of publishes first without the attack, then with it, on the same broker and machine.
Other programs on the machine may spoil a round, so the best of three rounds counts. The latency without the attack
counts as ALONE_S_MIN at least. If other programs used more than OTHERS_CORES_MAX processors, the latency says
nothing about the broker: it is reported and not judged. All other limits hold in every round.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from broker.local.servers.process import start_child, tied_to_us
from broker.model import Poll, PublishRequest
from broker.testing.broker_process import BrokerProcess
from broker.wire import avro
from broker.wire.messages import PollDecoder
from tests.kit.neighbour import CUT, TOPIC, Published, status_of
from tests.kit.openapi import Answered
from tests.kit.serving import RawHttp, eventually, topic_path

ROUNDS_MAX: Final = 3
PUBLISHES_MIN: Final = 300
"""The fewest publishes from which a percentile is computed."""
WARM_UP: Final = 50
SLOWER_MAX: Final = 3.0
ALONE_S_MIN: Final = 0.002
OTHERS_CORES_MAX: Final = 0.25
LOOP_BLOCKED_S_MAX: Final = 0.02
HOPELESS_S: Final = 0.2
"""A longer hold of the loop has a cause in the broker, however busy the machine is."""
WAIT_S: Final = 60.0
AVRO: Final = "Content-Type: avro/binary"
JSON: Final = "Content-Type: application/json"
GZIP: Final = "Content-Encoding: gzip"

_BLOCKED = re.compile(r'broker_loop_held_seconds_bucket\{le="([^"]+)".*\} ([0-9.e+]+)')

Attack = Callable[[], Awaitable[object]]


def request(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of a request."""
    lines = (f"{method} {target} HTTP/1.1", "Host: localhost", *headers)
    return "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def push(raw: RawHttp, data: bytes) -> bool:
    """Send bytes as long as the broker takes them; return whether it took all of them."""
    try:
        await raw.send(data)
    except ConnectionError:
        return False
    return True


async def answer(raw: RawHttp) -> Answered | None:
    """Return the next reply; None if the broker cut the connection instead."""
    try:
        return await raw.reply()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Round(NamedTuple):
    """Latencies without and with the attack, in seconds; the broker's own monitor measures ``blocked_s``."""

    alone_p99_s: float
    p99_s: float
    longest_s: float
    publishes: int
    blocked_s: float
    others_cores: float = 0.0
    """Processors used by programs outside this test."""

    @property
    def slower(self) -> float:
        """The ratio of the latency with the attack to the latency without it."""
        return self.p99_s / max(self.alone_p99_s, ALONE_S_MIN)

    @override
    def __str__(self) -> str:
        """Return the figures in milliseconds."""
        return (
            f"p99 {self.p99_s * 1000:.1f} ms ({self.slower:.1f} x {self.alone_p99_s * 1000:.1f} ms), "
            f"longest {self.longest_s * 1000:.0f} ms of {self.publishes}, "
            f"loop held {self.blocked_s * 1000:.0f} ms, others had {self.others_cores:.1f} processors"
        )


class Withstood(NamedTuple):
    """All rounds of an attack, and the broker's memory and log lines during them."""

    rounds: Sequence[Round]
    peak_bytes: int
    log_lines: int

    @override
    def __str__(self) -> str:
        """Return the figures as one line."""
        rounds = "; ".join(str(each) for each in self.rounds)
        return f"{rounds}; peak {self.peak_bytes >> 20} MiB, {self.log_lines} lines logged"


def p99(times: Sequence[float]) -> float:
    """Return the 99th percentile; of fewer than 100 times, the largest."""
    return sorted(times)[math.ceil(len(times) * 0.99) - 1]


class Neighbour:
    """The program ``tests.kit.neighbour``, and its publishes so far."""

    def __init__(self, port: int, log_path: Path) -> None:
        """Start the program; its log has its errors."""
        self.published: list[Published] = []
        self._log_path = log_path
        command = tied_to_us((sys.executable, "-m", "tests.kit.neighbour", str(port)))
        with log_path.open("wb") as log:
            self._process = start_child(command, stdout=subprocess.PIPE, stderr=log)
        self._thread = threading.Thread(target=self._read, name="neighbour", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._thread.join(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def until(self, moment_s: float) -> None:
        """Wait for the end of a publish that began after ``moment_s``; all earlier publishes are known then."""
        await eventually(
            lambda: self.published and self.published[-1].began_s >= moment_s, self._state, WAIT_S
        )

    async def more(self, publishes: int) -> None:
        """Wait until so many further publishes have ended."""
        wanted = len(self.published) + publishes
        await eventually(lambda: len(self.published) >= wanted, self._state, WAIT_S)

    def _state(self) -> str:
        return (
            f"the neighbour's last publishes: {self.published[-3:]}\n{self._log_path.read_text()}"
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.published.append(Published.of(line))

    def between(self, began_s: float, ended_s: float) -> list[Published]:
        """Return the publishes that were in flight at any moment between two times."""
        return [p for p in self.published if p.ended_s >= began_s and p.began_s <= ended_s]


class Attacked:
    """A running broker with a neighbour."""

    def __init__(self, process: BrokerProcess, neighbour: Neighbour) -> None:
        """Take both; they run already."""
        self._own = (process.pid, neighbour.pid, os.getpid())
        self.process = process
        self.neighbour = neighbour
        self.port = process.port

    async def ask(self, method: str, target: str, body: bytes = b"", *headers: str) -> Answered:
        """Send a request on a connection of its own and return the reply."""
        async with RawHttp(self.port) as raw:
            await raw.send(request(method, target, body, *headers))
            return await raw.reply()

    async def status(self, method: str, target: str, body: bytes = b"", *headers: str) -> int:
        """Send a request that the broker may cut; return the reply's status, CUT without one."""
        async with RawHttp(self.port) as raw:
            await push(raw, request(method, target, body, *headers))
            reply = await answer(raw)
        return CUT if reply is None else reply.status

    async def create(self, topic: str) -> None:
        """Create a topic."""
        assert (await self.ask("PUT", topic_path(topic))).status == 200

    async def fill(self, topic: str, payloads: Sequence[bytes], requests: int = 1) -> None:
        """Publish the same messages to a topic as often as told."""
        body = avro.encode_publish_request(PublishRequest(None, payloads))
        for _ in range(requests):
            reply = await self.ask("POST", topic_path(topic, "publish"), body, AVRO)
            assert reply.status == 200

    async def publish(self, topic: str, pointer: int, count: int) -> bytes:
        """Publish messages of a transaction; return the answer, which a rollback sends back."""
        body = avro.encode_publish_request(PublishRequest(pointer, [b"x"] * count))
        reply = await self.ask("POST", topic_path(topic, "publish"), body, AVRO)
        assert reply.status == 200
        return reply.body

    async def withstands(
        self,
        attack: Attack,
        *,
        peak_bytes_max: int,
        prepare: Attack | None = None,
        log_lines_max: int = 30,
        blocked_s_max: float = LOOP_BLOCKED_S_MAX,
    ) -> Withstood:
        """Repeat an attack beside the neighbour until the neighbour has made PUBLISHES_MIN publishes.

        ``prepare`` runs before each round and is not measured. ``blocked_s_max`` is larger for attacks with many
        connections (one iteration of the loop does a short piece of work for each, and the sum counts), and with very
        large messages, whose copy can't be interrupted. Then a publish may wait for as long as one such hold.

        Raises:
            AssertionError: the broker did not withstand the attack; the message has all figures.
        """
        await self.neighbour.more(WARM_UP)
        lines_before = self.process.log().count("\n")
        rounds: list[Round] = []
        peak = 0
        waits_s_max = blocked_s_max if blocked_s_max > LOOP_BLOCKED_S_MAX else 0.0

        def passes(measured: Round) -> bool:
            is_as_fast = (
                measured.slower <= SLOWER_MAX
                or measured.p99_s <= waits_s_max
                or measured.others_cores > OTHERS_CORES_MAX
            )
            return is_as_fast and measured.blocked_s <= blocked_s_max

        while _goes_on(rounds, passes):
            if prepare is not None:
                await prepare()
            alone = await self._measured(self._wait)
            self._forget_peak()
            attacked = await self._measured(attack)
            peak = max(peak, self.peak_bytes())
            others = max(alone.others_cores, attacked.others_cores)
            rounds.append(attacked._replace(alone_p99_s=alone.p99_s, others_cores=others))
        told = Withstood(rounds, peak, self.process.log().count("\n") - lines_before)
        assert any(map(passes, rounds)), told
        assert told.peak_bytes <= peak_bytes_max, told
        assert told.log_lines <= log_lines_max, f"{told}\n{self.process.log()}"
        await self.is_well()
        return told

    async def is_well(self) -> None:
        """Check that the broker lives, and that it acknowledged and still has every message of the neighbour.

        Raises:
            AssertionError: the broker has ended, logged a traceback, or refused or lost a message.
        """
        assert self.process.running, f"the broker has ended\n{self.process.log()}"
        assert "Traceback" not in self.process.log(), self.process.log()
        published = list(self.neighbour.published)
        refused = [each.status for each in published if each.status != 200]
        assert not refused, f"publishes of the neighbour were refused or cut: {refused[:10]}"
        reply = await self.ask("POST", topic_path(TOPIC, "poll"), avro.encode_poll(Poll()), AVRO)
        decoder = PollDecoder()
        payloads = [message.payload for message in decoder.feed(reply.body)]
        decoder.finish()
        read = [int(payload) for payload in payloads if payload.isdigit()]
        assert read == sorted(set(read))
        assert not set(range(len(published))) - set(read)

    def peak_bytes(self) -> int:
        """Return the process's peak memory since ``_forget_peak``, or since its start."""
        return memory_bytes(self.process.pid, "VmHWM")

    async def blocked_s(self) -> dict[float, int]:
        """Return the histogram of the loop's holds since the start: for each bound in seconds, their number."""
        reply = await self.ask("GET", "/metrics")
        return {float(le): int(float(n)) for le, n in _BLOCKED.findall(reply.body.decode())}

    async def _wait(self) -> None:
        await self.neighbour.more(PUBLISHES_MIN)

    async def _measured(self, attack: Attack) -> Round:
        before = await self.blocked_s()
        known = len(self.neighbour.published)
        others = others_processor_s(self._own)
        began = time.monotonic()
        while True:
            await attack()
            ended = time.monotonic()
            if len(self.neighbour.published) - known >= PUBLISHES_MIN or ended - began > WAIT_S:
                break
        others_cores = (others_processor_s(self._own) - others) / (ended - began)
        await self.neighbour.until(ended)
        blocked = longest_block_s(before, await self.blocked_s())
        publishes = self.neighbour.between(began, ended)
        times = [each.took_s for each in publishes]
        return Round(0.0, p99(times), max(times), len(times), blocked, others_cores)

    def _forget_peak(self) -> None:
        """Reset the kernel's count of the process's peak memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def attacked(
    data_dir: Path, flags: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Iterator[Attacked]:
    """Start a broker and its neighbour, and end both."""
    with BrokerProcess(data_dir, flags, environment=environment) as process:
        with socket.create_connection(("127.0.0.1", process.port), WAIT_S) as sock:
            sock.sendall(request("PUT", topic_path(TOPIC)))
            assert status_of(sock) == 200
        with closing(Neighbour(process.port, data_dir.with_name("neighbour.log"))) as neighbour:
            yield Attacked(process, neighbour)


def others_processor_s(own: Sequence[int]) -> float:
    """Return the processor time that all other processes used since the machine's start, in seconds."""
    idle = slice(3, 5)
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    used = sum(ticks) - sum(ticks[idle])
    for pid in own:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used -= int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int, name: str) -> int:
    """Return a figure of a process's memory, by its name in /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name} of process {pid}")


def longest_block_s(before: dict[float, int], after: dict[float, int]) -> float:
    """Return the upper bound of the longest hold between two reads of the histogram, in seconds."""
    bounds = sorted(after)
    more = [after[bound] - before.get(bound, 0) for bound in bounds]
    return bounds[more.index(more[-1])]


def _goes_on(rounds: Sequence[Round], passes: Callable[[Round], bool]) -> bool:
    """Return whether another round can still change the verdict."""
    if len(rounds) >= ROUNDS_MAX or any(map(passes, rounds)):
        return False
    return not any(each.blocked_s > HOPELESS_S for each in rounds)

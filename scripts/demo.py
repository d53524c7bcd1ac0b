"""Show the broker's main job on real input: publish a log file, tail it in parallel, browse, restart, read again.

Every line of a log file of this machine becomes a message, byte for byte. The script exits with 0 if every read
returns exactly the published lines, and with 1 if not. ``INPUT=file`` takes another file. ``STAY=yes`` leaves the
broker running.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker.client import Client, TopicId
from broker.errors import BrokerError

INPUT_DEFAULT = Path("/var/log/dpkg.log")
TOPIC = TopicId("demo", "lines")
NAME = f"{TOPIC.namespace}/{TOPIC.topic}"
BATCH_LINES = 200
READY = "broker ready at "
STAYS_AT = 8080
STOP_S = 20.0
TAIL_S = 120.0


class DemoError(Exception):
    """The demonstration can't go on; the text gives the reason and a remedy."""


def read_lines() -> tuple[Path, list[bytes]]:
    """Return the input and its lines, without their line ends."""
    path = Path(os.environ.get("INPUT") or INPUT_DEFAULT)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DemoError(
            f"can't read {path}: {error.strerror}. Name a file: make demo INPUT=file"
        ) from None
    if not content:
        raise DemoError(f"{path} is empty. Name a file with lines: make demo INPUT=file")
    lines = content.split(b"\n")
    return path, lines[:-1] if content.endswith(b"\n") else lines


class Broker:
    """A standalone broker in its own process."""

    def __init__(self, data_dir: Path) -> None:
        """Keep the folder of its data."""
        self.data_dir = data_dir
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self, port: int = 0) -> None:
        """Start the broker, and wait for its ready line."""
        command = [sys.executable, "-m", "broker.cli", "serve"]
        options = ["--port", str(port), "--data-dir", str(self.data_dir / "data")]
        with (self.data_dir / "broker.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(READY):
            log_text = (self.data_dir / "broker.log").read_text()
            raise DemoError(f"the broker did not start:\n{line}{log_text}")
        self.url = line.removeprefix(READY).strip()

    def kill(self) -> None:
        """Kill the broker, after an error."""
        if self.process is not None:
            with self.process:
                self.process.kill()
            self.process = None

    def stop(self) -> None:
        """Ask the broker to stop. Raises DemoError if it did not stop cleanly; it is gone then, too."""
        if self.process is None:
            return
        code = stopped(self.process, STOP_S)
        self.process = None
        if code != 0:
            log_text = (self.data_dir / "broker.log").read_text()
            raise DemoError(f"the broker stopped with {code}, not 0:\n{log_text}")


def stopped(process: subprocess.Popen[str], wait_s: float) -> int:
    """Ask a process to end, and kill it if it has not ended within ``wait_s``; return its exit code."""
    with process:
        process.terminate()
        try:
            return process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def is_free(port: int) -> bool:
    """Return whether a port of loopback is free."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def check(name: str, expected: list[bytes], found: list[bytes]) -> None:
    """Compare byte for byte. Raises DemoError if there is a difference."""
    if found == expected:
        return
    place = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    raise DemoError(
        f"{name}: differs from the input at line {place + 1} "
        f"({len(expected)} lines went in, {len(found)} came back)"
    )


async def publish(client: Client, lines: list[bytes]) -> float:
    """Publish all lines, in order; return the seconds that it took."""
    began = time.perf_counter()
    for start in range(0, len(lines), BATCH_LINES):
        await client.publish(TOPIC, lines[start : start + BATCH_LINES])
    return time.perf_counter() - began


async def tail(url: str, count: int, started: asyncio.Event) -> list[bytes]:
    """Follow the topic from its beginning until ``count`` messages have come. Raises DemoError after TAIL_S."""
    found: list[bytes] = []
    try:
        async with Client(url) as client, asyncio.timeout(TAIL_S):
            started.set()
            async for page in client.tail_pages(TOPIC):
                found += [message.payload for message in page]
                if len(found) >= count:
                    break
    except TimeoutError:
        text = f"the second consumer has {len(found):,} of {count:,} lines after {TAIL_S:g} s"
        raise DemoError(text) from None
    return found


async def publish_and_tail(url: str, lines: list[bytes]) -> None:
    """Publish while a second consumer follows, and compare its messages."""
    async with Client(url) as client:
        await client.create_topic(TOPIC)
        following = asyncio.Event()
        tailing = asyncio.create_task(tail(url, len(lines), following))
        await following.wait()
        took_s = await publish(client, lines)
        found = await tailing
    check("the second consumer", lines, found)
    size = sum(map(len, lines))
    say(
        f"published {len(lines):,} lines ({size:,} bytes) in {took_s:.2f} s, "
        f"{len(lines) / took_s:,.0f} a second, each batch on disk before its OK"
    )
    say("a second consumer tailed them meanwhile: every byte is the same")


async def read_back(url: str, lines: list[bytes], when: str) -> None:
    """Poll all messages from the beginning, and compare."""
    async with Client(url) as client:
        began = time.perf_counter()
        found = [message.payload for message in await client.poll(TOPIC)]
        took_s = time.perf_counter() - began
    check(f"reading {when}", lines, found)
    rate = len(lines) / took_s
    say(f"read back {when}: {len(lines):,} messages, {rate:,.0f} a second, every byte the same")


async def browse_by_time(url: str, lines: list[bytes]) -> None:
    """Read the messages from one moment on, and compare with the expected ones."""
    async with Client(url) as client:
        messages = await client.poll(TOPIC)
        middle = messages[len(messages) // 2]
        expected = [m.payload for m in messages if m.timestamp_ms >= middle.timestamp_ms]
        found = [m.payload for m in await client.poll(TOPIC, start=middle.timestamp_ms)]
        check("polling by time", expected, found)
        page = await client.browse(TOPIC, start=middle.timestamp_ms, limit=100, full=True)
    check("browsing by time", expected[:100], [entry.payload or b"" for entry in page.messages])
    say(f"polled and browsed by time: {len(found):,} messages from the middle one's millisecond on")


@asynccontextmanager
async def running(broker: Broker, port: int = 0) -> AsyncIterator[str]:
    """Run a broker inside the block, and give its address."""
    broker.start(port)
    try:
        yield broker.url
    except BaseException:
        broker.kill()
        raise
    broker.stop()


async def demonstrate(broker: Broker) -> None:
    """Run all steps of the demonstration."""
    path, lines = read_lines()
    say(f"input: {path}, {len(lines):,} lines")
    async with running(broker) as url:
        say(f"a broker runs at {url}, with its data in {broker.data_dir}")
        await publish_and_tail(url, lines)
        await browse_by_time(url, lines)
        await read_back(url, lines, "before the restart")
    async with running(broker) as url:
        await read_back(url, lines, "after a restart of the broker")


def farewell(broker: Broker, *, stays: bool) -> None:
    """Print commands to try next."""
    url, data_dir = broker.url, broker.data_dir
    pid = broker.process.pid if broker.process is not None else None
    if stays:
        say(f"the broker stays up at {url} with its data in {data_dir}; stop it: kill {pid}")
        say(f"  .venv/bin/broker publish {NAME} 'one more' --url {url}")
        say(f"  .venv/bin/broker tail {NAME} --no-follow --url {url}")
        path = f"/v1/namespaces/{TOPIC.namespace}/topics/{TOPIC.topic}/messages?order=desc&limit=3"
        say(f"  curl '{url}{path}'")
    else:
        say("now with a broker of your own: make serve   (http://127.0.0.1:8080), and beside it:")
        say("  .venv/bin/broker topics create demo/mine")
        say("  .venv/bin/broker publish demo/mine --lines README.md")
        say("  .venv/bin/broker tail demo/mine")


def main() -> int:
    """Run the demonstration; return the exit code."""
    stays = os.environ.get("STAY", "") == "yes"
    folder = Path(tempfile.mkdtemp(prefix="broker-demo-"))
    try:
        return run(Broker(folder), stays=stays)
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)


def run(broker: Broker, *, stays: bool) -> int:
    """Run the demonstration with one broker; return the exit code."""
    try:
        asyncio.run(demonstrate(broker))
        if stays:
            broker.start(STAYS_AT if is_free(STAYS_AT) else 0)
    except (BrokerError, DemoError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    farewell(broker, stays=stays)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

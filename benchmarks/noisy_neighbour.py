"""How much does a principal at its quota delay another one? ``python -m benchmarks.noisy_neighbour``.

One client publishes one message after the other. Beside it another principal, whose quota is used up, sends publishes over many
connections as fast as the broker answers, and ignores ``Retry-After``. Runs with and without it take turns, so that a change of
the machine favours neither.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from broker.client import SyncClient
from broker.client.client_request import request_for
from broker.testing.broker_process import BrokerProcess

CONNECTIONS: Final = 16
"""The connections of the noisy principal."""
LIMIT: Final = 50
"""The requests that it may publish in a second."""
TOPIC: Final = "bench/t"
REQUIRED: Final = ("--access-mode", "required")


def request(token: str) -> bytes:
    """Return the bytes of a publish of 100 bytes."""
    body = b"x" * 100
    return (
        f"POST /v1/namespaces/bench/topics/t/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes
) -> bytes:
    """Send a request and return the first line of its answer."""
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    return head.partition(b"\r\n")[0]


async def noisy(port: int, token: str, on: Event, end: Event) -> None:
    """Send as fast as the broker answers, while ``on`` is set."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not end.is_set():
            if on.is_set():
                await exchange(reader, writer, request(token))
            else:
                await asyncio.sleep(0.01)
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


def run_noisy(port: int, token: str, on: Event, end: Event) -> None:
    """Do so in a process of its own."""
    asyncio.run(noisy(port, token, on, end))


async def quiet(port: int, token: str, seconds: float) -> list[float]:
    """Return the time of each publish."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, took, until = request(token), [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        told = await exchange(reader, writer, sent)
        took.append(time.perf_counter() - began)
        assert b" 200 " in told, told
    writer.close()
    return took


def prepare(client: SyncClient) -> list[str]:
    """Make the topic, two principals and the quota of the second one. Return their tokens."""
    tokens = []
    for name in ("alice", "bob"):
        made = client.ask(request_for("create_token", sent={"principal": name}))
        client.ask(request_for("grant", sent={"who": name, "what": "owner", "pattern": "*"}))
        tokens.append(str(made["token"]))
    limits = {"limits": {"publish_requests_s": LIMIT}}
    client.ask(request_for("put_quota", who="bob", sent=limits))
    client.create_topic(TOPIC)
    return tokens


def main() -> int:
    """Measure, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--run-s", type=float, default=2.0)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, admin = Path(folder) / "data", Path(folder) / "admin.token"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "broker.cli",
                "access",
                "init",
                "--data-dir",
                data,
                "--out",
                admin,
            ],
            check=True,
        )
        with BrokerProcess(data, REQUIRED, own_settings=True) as broker:
            measure(broker, admin, asked.runs, asked.run_s)
    return 0


def measure(broker: BrokerProcess, admin: Path, runs: int, run_s: float) -> None:
    """Print the figures of a broker."""
    with SyncClient(url=broker.url, token_file=str(admin)) as client:
        alice, bob = prepare(client)
    on, end = multiprocessing.Event(), multiprocessing.Event()
    noise = multiprocessing.Process(target=run_noisy, args=(broker.port, bob, on, end))
    noise.start()
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    asyncio.run(quiet(broker.port, alice, run_s))  # Warm.
    for at in range(2 * runs):
        is_noisy = at % 4 in (1, 2)
        if is_noisy:
            on.set()
        else:
            on.clear()
        asyncio.run(quiet(broker.port, alice, 0.3))  # Until the change has its effect.
        found[is_noisy].append(asyncio.run(quiet(broker.port, alice, run_s)))
    end.set()
    noise.join()
    for is_noisy, series in found.items():
        p99 = [statistics.quantiles(each, n=100)[98] * 1000 for each in series]
        p50 = [statistics.median(each) * 1000 for each in series]
        name = "beside a noisy principal" if is_noisy else "alone"
        print(
            f"{name}: p50 {statistics.median(p50):.2f} ms, p99 {statistics.median(p99):.2f} ms "
            f"({min(p99):.2f} to {max(p99):.2f})"
        )


if __name__ == "__main__":
    sys.exit(main())

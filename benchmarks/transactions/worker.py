"""One process of clients: ``python -m benchmarks.transactions.worker JSON``, where JSON is a ``Task``.

It prints ``ready`` once its clients are connected. It begins at a line on its input, and ends with one line of JSON::

    transact, publish    [[moment when the call began, moment when it returned, number], …]
    follow               [[moment when the handler had the message, number], …]; a second line sets how many
    thrift               as transact: start, can-commit and commit of a transaction without changes

Moments are from the machine's monotonic clock, in ns. All processes share this clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources

import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from broker.client import Client
from broker.model import Message

PAYLOAD_BYTES = 256
HOST = "127.0.0.1"
NUMBER_BYTES = 8
LAST_S = 30.0
"""The longest time to wait for the last messages."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task of a process.

    Attributes:
        kind: ``transact``, ``publish``, ``follow`` or ``thrift``.
        where: the broker's address, or a port for ``thrift``.
        topic: the topic.
        clients: the number of clients, each with its own connections.
        first: the number of the first message; each client counts on from there in steps of ``clients``.
        seconds: the length of the run.
        pause_s: the pause of each client between two calls.
    """

    kind: str
    where: str
    topic: str = ""
    clients: int = 1
    first: int = 0
    seconds: float = 1.0
    pause_s: float = 0.0

    def as_json(self) -> str:
        """Return the task as the argument of a process."""
        return json.dumps(asdict(self))


Times = list[list[int]]


def payload(number: int) -> bytes:
    """Return the payload of the message with a number."""
    return number.to_bytes(NUMBER_BYTES, "big").ljust(PAYLOAD_BYTES, b".")


async def _transact(client: Client, topic: str, number: int) -> None:
    async with client.transaction() as tx:
        await tx.publish(topic, payload(number))


async def _publish(client: Client, topic: str, number: int) -> None:
    await client.publish(topic, payload(number))


async def _sender(task: Task, sender: int, call: Callable[[int], Awaitable[None]]) -> Times:
    """Make one call after the other until the time is over."""
    until_ns = time.monotonic_ns() + int(task.seconds * 1e9)
    times, number = [], task.first + sender
    while (began_ns := time.monotonic_ns()) < until_ns:
        await call(number)
        times.append([began_ns, time.monotonic_ns(), number])
        number += task.clients
        if task.pause_s:
            await asyncio.sleep(task.pause_s)
    return times


async def _load(task: Task) -> Times:
    call = _transact if task.kind == "transact" else _publish
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(task.where)) for _ in range(task.clients)]
        await asyncio.gather(*(client.transactions.snapshot() for client in clients))
        await _begin()
        senders = [
            _sender(task, sender, partial(call, client, task.topic))
            for sender, client in enumerate(clients)
        ]
        return [each for times in await asyncio.gather(*senders) for each in times]


async def _follow(task: Task) -> Times:
    seen: Times = []
    more = asyncio.Event()

    async def handle(messages: Sequence[Message]) -> None:
        now_ns = time.monotonic_ns()
        for message in messages:
            seen.append([now_ns, int.from_bytes(message.payload[:NUMBER_BYTES], "big")])
        more.set()

    async with Client(task.where) as client:
        subscriber = client.subscriber(
            task.topic, "follower", handle, transactional=True, batch_messages_max=1000
        )
        following = asyncio.create_task(subscriber.run())
        await _begin()
        wanted = int(await asyncio.to_thread(sys.stdin.readline))
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while len(seen) < wanted:
                    more.clear()
                    await more.wait()
        subscriber.stop()
        await following
    return seen


async def _begin() -> None:
    """Print ``ready``, and wait for the line that starts the run."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


def _thrift(task: Task) -> Times:
    """Start and commit through Tephra's interface, each client in its own thread."""
    with resources.as_file(resources.files("broker.transactions") / "tephra.thrift") as path:
        interface = thriftpy2.load(str(path), module_name="tephra_thrift")
    ready = threading.Barrier(task.clients + 1)

    def run(_: int) -> Times:
        client = make_client(
            interface.TTransactionServer,
            HOST,
            int(task.where),
            proto_factory=TBinaryProtocolFactory(),
            trans_factory=TFramedTransportFactory(),
            timeout=30_000,
        )
        ready.wait()
        ready.wait()
        times: Times = []
        until_ns = time.monotonic_ns() + int(task.seconds * 1e9)
        while (began_ns := time.monotonic_ns()) < until_ns:
            begun = client.startShortClientId("benchmark")
            client.canCommitOrThrow(begun.transactionId, set())
            client.commitOrThrow(begun.transactionId, begun.writePointer)
            times.append([began_ns, time.monotonic_ns(), 0])
        client.close()
        return times

    with ThreadPoolExecutor(task.clients) as pool:
        running = [pool.submit(run, number) for number in range(task.clients)]
        ready.wait()
        print("ready", flush=True)
        sys.stdin.readline()
        ready.wait()
        return [time for each in running for time in each.result()]


def main() -> None:
    """Run the task."""
    task = Task(**json.loads(sys.argv[1]))
    if task.kind == "thrift":
        times = _thrift(task)
    else:
        times = asyncio.run(_follow(task) if task.kind == "follow" else _load(task))
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()

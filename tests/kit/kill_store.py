"""Run logs over LevelDB in a child process, for kill loops: the child appends on request, and SIGKILL ends it.

The child leads every topic of its requests, as simply as is correct: it claims on first use, gives rising ids, and
looks up keys. It is forked from a server process that has imported all modules already, so a life costs milliseconds.
Requests and replies are JSON lines on a socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing.connection
import os
import signal
import socket
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from broker.clock import SystemClock
from broker.errors import BrokerError, Fenced
from broker.model import LOG_KEY_MIN, LogKey, TopicId, log_key, timestamp_of
from broker.storage.entry import Mark, Shared
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import open_table
from broker.storage.log import Deleted, Logs, StaleGeneration
from broker.storage.marks import IDEMPOTENCY
from broker.storage.ownpage import PageBounds
from broker.storage.payloads import LogClosed, PayloadLogs
from broker.storage.records import Records
from broker.storage.reference import encode_count
from broker.storage.root import RootState
from broker.topics.dedupe import key_hash
from broker.topics.registry import TopicRegistry
from chaos.bare import append, rows_of
from chaos.labels import collapse, expand
from tests.kit.driver import Done, Refused, TopicContents, UnknownResult
from tests.kit.fork_server import CONTEXT, preload

_LINE_BYTES_MAX = 1 << 26
_OPTIONS = Options(write_buffer_bytes=256 << 10, file_bytes_max=1 << 20)
"""Small, so that kills fall into the writing and merging of tables."""
_BOUNDS = PageBounds(bytes_max=64 << 10, cells_max=40, packed_from=4)
"""Small, so that pages are rolled often."""


preload(__name__)


class DieAt(NamedTuple):
    """The moment at which a life ends: LevelDB's Nth write, from 1, "before" or "after" it is on disk."""

    write: int
    when: str


class StoreDriver:
    """Drives a store in a child process."""

    def __init__(self, directory: Path, die_at: DieAt | None = None) -> None:
        """Keep the store in ``directory``. The first life dies at ``die_at``, if that is given."""
        self._directory = directory
        self._die_at = die_at
        self._process: BaseProcess | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count()
        self._writer: asyncio.StreamWriter | None = None
        self._replies: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the child and wait until its store is open."""
        ours, theirs = CONTEXT.Pipe()
        arguments = (theirs, self._directory, self._die_at)
        self._process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        self._die_at = None
        self._process.start()
        theirs.close()
        reader, self._writer = await asyncio.open_connection(
            sock=_socket(ours), limit=_LINE_BYTES_MAX
        )
        self._replies = asyncio.create_task(self._take_replies(reader))
        await self._ask("ready")

    async def kill(self) -> None:
        """Kill the child with SIGKILL."""
        assert self._process is not None
        assert self._writer is not None
        assert self._replies is not None
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        await self._replies
        self._writer.close()

    async def stop(self) -> None:
        """Kill the child if it lives."""
        if self._process is not None and self._process.is_alive():
            await self.kill()

    async def _take_replies(self, reader: asyncio.StreamReader) -> None:
        # ConnectionError: the child died during a write to its socket.
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.endswith(b"\n"):
                    reply = json.loads(line)
                    self._waiting.pop(reply["n"]).set_result(reply)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(UnknownResult("killed"))

    async def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self._writer is not None
        assert self._replies is not None
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if self._replies.done():
            del self._waiting[number]
            raise UnknownResult("killed before")
        self._writer.write(json.dumps({"n": number, "op": op, **arguments}).encode() + b"\n")
        reply: dict[str, Any] = await future
        if "refused" in reply:
            raise Refused(reply["refused"])
        if "unknown" in reply:
            raise UnknownResult(reply["unknown"])
        return reply

    async def create(self, topic: str) -> int:
        """Create a topic."""
        return int((await self._ask("create", topic=topic))["generation"])

    async def delete(self, topic: str, generation: int) -> None:
        """Delete a topic."""
        await self._ask("delete", topic=topic, generation=generation)

    async def publish(
        self,
        topic: str,
        generation: int,
        payloads: Sequence[str],
        *,
        pointer: int | None = None,
        key: str | None = None,
    ) -> Done:
        """Append a batch."""
        reply = await self._ask(
            "publish",
            topic=topic,
            generation=generation,
            payloads=list(payloads),
            pointer=pointer,
            key=key,
        )
        return Done(*reply["done"])

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> None:
        """Roll back."""
        await self._ask(
            "rollback",
            topic=topic,
            generation=generation,
            pointer=pointer,
            first=first,
            last=last,
        )

    async def store(
        self, topic: str, generation: int, payloads: Sequence[str], number: int
    ) -> Done:
        """Append to a payload log."""
        reply = await self._ask(
            "store", topic=topic, generation=generation, payloads=list(payloads), number=number
        )
        return Done(*reply["done"])

    async def reference(self, topic: str, generation: int, number: int) -> Done:
        """Seal a payload log and append its reference."""
        reply = await self._ask("reference", topic=topic, generation=generation, number=number)
        return Done(*reply["done"])

    async def read(self, topic: str, generation: int) -> TopicContents:
        """Scan the message log."""
        reply = await self._ask("read", topic=topic, generation=generation, number=None)
        rows = [(row, payload, pointer) for row, payload, pointer in reply["rows"]]
        return TopicContents(rows, reply["floor"], reply["pointer"])

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        """Scan a payload log."""
        reply = await self._ask("read", topic=topic, generation=generation, number=number)
        return [(row, payload) for row, payload, _ in reply["rows"]]


def _socket(connection: multiprocessing.connection.Connection) -> socket.socket:
    """Return the socket of a pipe's end, and close the pipe's end."""
    opened = socket.socket(fileno=socket.dup(connection.fileno()))
    connection.close()
    opened.setblocking(False)
    return opened


def serve(
    connection: multiprocessing.connection.Connection, directory: Path, die_at: DieAt | None
) -> None:
    """Run in the child until it is killed."""
    asyncio.run(_serve(_socket(connection), directory, die_at))


async def _serve(connection: socket.socket, directory: Path, die_at: DieAt | None) -> None:
    def fault(number: int, when: str) -> None:
        if (number, when) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    table = await open_table(directory, _OPTIONS, fault=fault)
    leader = _Leader(Logs(table, SystemClock(), bounds=_BOUNDS))
    reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_BYTES_MAX)

    async def answer(request: dict[str, Any]) -> None:
        number, op = request.pop("n"), request.pop("op")
        try:
            reply = await getattr(leader, op)(**request)
        except BrokerError as error:
            reply = {error.outcome: str(error)}
        except (Deleted, StaleGeneration, LogClosed) as error:
            reply = {"refused": repr(error)}
        writer.write(json.dumps({"n": number, **reply}).encode() + b"\n")

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(answer(json.loads(line)))
    await table.close()


class _Leader:
    """Leads all topics of the store; its methods are the operations of the driver."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._registry = TopicRegistry(Records(logs.resolver))
        self._payloads = PayloadLogs(logs, "child")
        self._holds: dict[tuple[str, int], LogHold] = {}
        self._claiming: dict[str, asyncio.Lock] = {}
        self._keys: dict[str, asyncio.Lock] = {}
        self._last_ms = 0

    async def ready(self) -> dict[str, Any]:
        return {}

    async def _hold(self, topic: str, generation: int) -> LogHold:
        async with self._claiming.setdefault(topic, asyncio.Lock()):
            hold = self._holds.get((topic, generation))
            if hold is None or hold.done:
                hold = await self._logs.claim(_log(topic, generation), "child")
                self._holds[topic, generation] = hold
                self._last_ms = max(self._last_ms, timestamp_of(hold.pointer))
            return hold

    def _ids(self, rows: int) -> list[LogKey]:
        self._last_ms = max(time.time_ns() // 1_000_000, self._last_ms + 1)
        return [log_key(self._last_ms, number) for number in range(rows)]

    async def create(self, topic: str) -> dict[str, Any]:
        identifier = TopicId("default", topic)
        while True:
            record = await self._registry.read(identifier)
            if record is None or record.deleted:
                generation = (await self._registry.create(identifier, {"ttl": "3600"})).generation
            else:
                generation = record.generation
            try:
                await self._hold(topic, generation)
            except Deleted:  # An earlier life died during the deletion.
                await self._registry.delete(identifier, generation)
            else:
                return {"generation": generation}

    async def delete(self, topic: str, generation: int) -> dict[str, Any]:
        await self._logs.delete(_log(topic, generation), "child")
        await self._registry.delete(TopicId("default", topic), generation)
        return {}

    async def publish(
        self,
        topic: str,
        generation: int,
        payloads: list[str],
        pointer: int | None,
        key: str | None,
    ) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        if key is None:
            return await self._append(hold, payloads, pointer, None)
        # A repetition waits for the outcome of a first request in flight.
        async with self._keys.setdefault(key, asyncio.Lock()):
            found = await hold.marks.find(IDEMPOTENCY, key_hash(key))
            if found:
                return {"done": [found[0].first.hex(), found[0].last.hex(), hold.epoch, True]}
            return await self._append(hold, payloads, pointer, key)

    async def _append(
        self, hold: LogHold, payloads: list[str], pointer: int | None, key: str | None
    ) -> dict[str, Any]:
        ids = self._ids(len(payloads))
        marks = () if key is None else (Mark(IDEMPOTENCY, key_hash(key), ids[0], ids[-1], _BODY),)
        await append(hold, ids, [expand(label) for label in payloads], Shared(pointer), marks)
        return {"done": [ids[0].hex(), ids[-1].hex(), hold.epoch]}

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        await hold.rollback(pointer, bytes.fromhex(first), bytes.fromhex(last))
        return {}

    async def store(
        self, topic: str, generation: int, payloads: list[str], number: int
    ) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        stored = await self._payloads.open(hold, number)
        ids = self._ids(len(payloads))
        await append(stored, ids, [expand(label) for label in payloads], Shared(is_stored=True))
        if not await hold.proof():
            raise Fenced("another leads")
        return {"done": [ids[0].hex(), ids[-1].hex(), stored.epoch]}

    async def reference(self, topic: str, generation: int, number: int) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        sealed = await self._payloads.seal(hold, number)
        if sealed.root.state is not RootState.SEALED or not sealed.was_open:
            raise Fenced("it was published before; this load publishes each log once")
        [row] = self._ids(1)
        messages = 0 if sealed.tail is None else sealed.tail.total
        await append(hold, [row], [encode_count(messages)], Shared(number, number=number))
        await self._payloads.mark_published(hold, number, row)
        return {"done": [row.hex(), row.hex(), hold.epoch]}

    async def read(self, topic: str, generation: int, number: int | None) -> dict[str, Any]:
        log = _log(topic, generation)._replace(number=number)
        rows = [
            (row.id.hex(), None if row.payload is None else collapse(row.payload), row.pointer)
            for row in await rows_of(self._logs, log)
        ]
        ends = await self._logs.ends(log)
        floor = LOG_KEY_MIN if ends is None else ends.root.floor
        pointer = LOG_KEY_MIN if ends is None or ends.tail is None else ends.tail.pointer
        return {"rows": rows, "floor": floor.hex(), "pointer": pointer.hex()}


_BODY = bytes(32)
"""The hash of a keyed request's body. This load never repeats a key with another body, so a constant suffices."""


def _log(topic: str, generation: int) -> LogId:
    return LogId(TopicId("default", topic), generation)

"""A LevelDB store in a child process, for kill loops: appends by request, dies by SIGKILL.

The child leads every topic that it is asked about, in the least way that is right: it claims on first
use, gives ids that rise, and looks keys up. It is forked from a server process that has imported
everything already, so a life costs milliseconds. Requests and replies are JSON lines on a socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import socket
import time
from collections.abc import Sequence
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from broker.errors import BrokerError
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id, timestamp_of
from broker.storage.control import Deleted, StaleGeneration
from broker.storage.keys import IDEMPOTENCY, LogId
from broker.storage.leveldb_database import Options
from broker.storage.leveldb_store import LevelDBStore
from broker.storage.ports import Batch, Hold, Segment, SideRow
from broker.testing.drivers import Done, Gone, Refused, Seen, collapse, expand

_LINE_BYTES_MAX = 1 << 26
_CONTEXT = multiprocessing.get_context("forkserver")
_OPTIONS = Options(write_buffer_bytes=256 << 10, file_bytes_max=1 << 20)
"""Small, so that tables are written and merged while the child is being killed."""


class StoreDriver:
    """Drives a store in a child process."""

    def __init__(self, directory: Path) -> None:
        """Keep the store in ``directory``."""
        self._directory = directory
        self._process: BaseProcess | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count()
        self._writer: asyncio.StreamWriter | None = None
        self._replies: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the child and wait until its store is open."""
        # What is imported once in the fork server is there in every child.
        _CONTEXT.set_forkserver_preload([__name__])
        ours, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=serve, args=(theirs, self._directory), daemon=True)
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
        # ConnectionError: the child died while it was being written to.
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.endswith(b"\n"):
                    reply = json.loads(line)
                    self._waiting.pop(reply["n"]).set_result(reply)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(Gone("killed"))

    async def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self._writer is not None
        assert self._replies is not None
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if self._replies.done():
            del self._waiting[number]
            raise Gone("killed before")
        self._writer.write(json.dumps({"n": number, "op": op, **arguments}).encode() + b"\n")
        reply: dict[str, Any] = await future
        if "refused" in reply:
            raise Refused(reply["refused"])
        if "unknown" in reply:
            raise Gone(reply["unknown"])
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
    ) -> int:
        """Negate."""
        reply = await self._ask(
            "rollback",
            topic=topic,
            generation=generation,
            pointer=pointer,
            first=first,
            last=last,
        )
        return int(reply["rows"])

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

    async def read(self, topic: str, generation: int) -> Seen:
        """Scan the message log."""
        reply = await self._ask("read", topic=topic, generation=generation, number=None)
        rows = [(row, payload, pointer) for row, payload, pointer in reply["rows"]]
        return Seen(rows, reply["floor"], reply["pointer"])

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        """Scan a payload log."""
        reply = await self._ask("read", topic=topic, generation=generation, number=number)
        return [(row, payload) for row, payload, _ in reply["rows"]]


def _socket(connection: multiprocessing.connection.Connection) -> socket.socket:
    """Return the socket of a pipe's end, which is closed."""
    opened = socket.socket(fileno=socket.dup(connection.fileno()))
    connection.close()
    opened.setblocking(False)
    return opened


def serve(connection: multiprocessing.connection.Connection, directory: Path) -> None:
    """Run in the child until it is killed."""
    asyncio.run(_serve(_socket(connection), directory))


async def _serve(connection: socket.socket, directory: Path) -> None:
    store = await LevelDBStore.open(directory, _OPTIONS)
    leader = _Leader(store)
    reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_BYTES_MAX)

    async def answer(request: dict[str, Any]) -> None:
        number, op = request.pop("n"), request.pop("op")
        try:
            reply = await getattr(leader, op)(**request)
        except BrokerError as error:
            reply = {error.outcome: str(error)}
        except (Deleted, StaleGeneration) as error:
            reply = {"refused": str(error)}
        writer.write(json.dumps({"n": number, **reply}).encode() + b"\n")

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(answer(json.loads(line)))
    await store.close()


class _Leader:
    """Leads all topics of the store; its methods are the operations of the driver."""

    def __init__(self, store: LevelDBStore) -> None:
        self._store = store
        self._holds: dict[tuple[str, int], Hold] = {}
        self._claiming: dict[str, asyncio.Lock] = {}
        self._keys: dict[str, asyncio.Lock] = {}
        self._last_ms = 0

    async def ready(self) -> dict[str, Any]:
        return {}

    async def _hold(self, topic: str, generation: int) -> Hold:
        async with self._claiming.setdefault(topic, asyncio.Lock()):
            hold = self._holds.get((topic, generation))
            if hold is None or hold.done:
                hold = await self._store.claim(_log(topic, generation), "child")
                self._holds[topic, generation] = hold
                self._last_ms = max(self._last_ms, timestamp_of(hold.control.pointer))
            return hold

    def _ids(self, rows: int) -> list[RowId]:
        self._last_ms = max(time.time_ns() // 1_000_000, self._last_ms + 1)
        return [row_id(self._last_ms, number) for number in range(rows)]

    async def create(self, topic: str) -> dict[str, Any]:
        key = topic.encode()
        record = await self._store.get(key)
        generation = 1 + (0 if record is None else int(record.value.rstrip(b"-")))
        version = None if record is None else record.version
        await self._store.put_if(key, version, str(generation).encode())
        await self._hold(topic, generation)
        return {"generation": generation}

    async def delete(self, topic: str, generation: int) -> dict[str, Any]:
        await self._store.tombstone(_log(topic, generation), "child")
        record = await self._store.get(topic.encode())
        assert record is not None
        await self._store.put_if(topic.encode(), record.version, b"%d-" % generation)
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
        # Who asks again while the first is under way waits for its outcome.
        async with self._keys.setdefault(key, asyncio.Lock()):
            found = await self._store.side(hold.log, IDEMPOTENCY, key.encode())
            if found:
                return {"done": [found[0].row.hex(), found[0].value.hex(), hold.epoch, True]}
            return await self._append(hold, payloads, pointer, key)

    async def _append(
        self, hold: Hold, payloads: list[str], pointer: int | None, key: str | None
    ) -> dict[str, Any]:
        ids = self._ids(len(payloads))
        side = [] if key is None else [SideRow(IDEMPOTENCY, key.encode(), ids[0], ids[-1])]
        segment = Segment(ids, [expand(label) for label in payloads], pointer=pointer)
        await self._store.append(hold, Batch([segment], ids[-1], side))
        return {"done": [ids[0].hex(), ids[-1].hex(), hold.epoch]}

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        window = bytes.fromhex(first), bytes.fromhex(last)
        return {"rows": await self._store.negate(hold, *window, pointer)}

    async def store(
        self, topic: str, generation: int, payloads: list[str], number: int
    ) -> dict[str, Any]:
        log = await self._store.open_payloads(await self._hold(topic, generation), number)
        ids = self._ids(len(payloads))
        segment = Segment(ids, [expand(label) for label in payloads])
        await self._store.append(log, Batch([segment], ids[-1]))
        return {"done": [ids[0].hex(), ids[-1].hex(), log.epoch]}

    async def reference(self, topic: str, generation: int, number: int) -> dict[str, Any]:
        hold = await self._hold(topic, generation)
        log = await self._store.open_payloads(hold, number)
        await self._store.seal(log, hold.control.pointer)
        [row] = self._ids(1)
        await self._store.append(hold, Batch([Segment([row], None, pointer=number)], row))
        await self._store.mark_published(log, row)
        return {"done": [row.hex(), row.hex(), hold.epoch]}

    async def read(self, topic: str, generation: int, number: int | None) -> dict[str, Any]:
        log = _log(topic, generation)._replace(number=number)
        rows, after, more, control = [], ROW_ID_MIN, True, None
        while more:
            page = await self._store.scan(log, after, ROW_ID_MAX, rows_max=1000, bytes_max=1 << 20)
            for row in page.rows:
                payload = None if row.payload is None else collapse(row.payload)
                rows.append((row.id.hex(), payload, row.pointer))
            after, more, control = page.seen, page.more, page.control
        floor, pointer = (control.floor, control.pointer) if control else (ROW_ID_MIN, ROW_ID_MIN)
        return {"rows": rows, "floor": floor.hex(), "pointer": pointer.hex()}


def _log(topic: str, generation: int) -> LogId:
    return LogId(TopicId("default", topic), generation)

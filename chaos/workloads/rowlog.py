"""The rowlog workload: writers put messages into rows of HBase, and worker processes handle them.

No node takes part. The writers and the worker processes use the HBase and the ZooKeeper of the nodes
directly. Faults kill workers too. Writes are synced (Thrift-2), so no message may be lost after any kill::

    writers here ── put ──▶ HBase ◀── rowlog-1, rowlog-2, rowlog-3: one of them processes at a time
       │ row-put                       │ lines in their logs
       └──────────▶ history ◀── row-offer, row-halt

Each writer has its own rows, so its puts into a row are in order. Listeners fail at random.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from broker.errors import BrokerError, Unavailable
from broker.rowlog import RowLog, Subscription
from broker.rowlog.row_table import TableError
from broker.rowlog.thrift2 import Thrift2Rows
from chaos.history import Event, Value
from chaos.workloads.client_process import note
from chaos.workloads.workload import Beneath, WorkloadSurroundings

SUBSCRIPTIONS: Final = ("a", "b")
WRITERS: Final = 2
ROWS: Final = 8
FAILS: Final = 0.1
SESSION_TIMEOUT_MS: Final = 2_000
LOOK_S: Final = 0.1
FAMILY: Final = "rowlog"


class Lines:
    """Follows the log file of one worker process of a rowlog."""

    def __init__(self, path: Path, rowlog: str) -> None:
        """Begin at the start of the file."""
        self._path = path
        self._rowlog = rowlog
        self._from = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new events of this rowlog. Skip other rowlogs' events, and log lines."""
        with self._path.open("rb") as file:
            file.seek(self._from)
            whole, mark, _ = file.read().rpartition(b"\n")
        self._from += len(whole) + len(mark)
        told = [json.loads(line) for line in whole.splitlines() if line.startswith(b'{"kind"')]
        return [each for each in told if each["log"] == self._rowlog]


class RowLogWorkload:
    """One rowlog with two subscriptions."""

    name = "rowlog"

    def __init__(self) -> None:
        """Begin without a rowlog."""
        self._id = ""
        self._log: RowLog | None = None
        """The rowlog of the writers."""
        self._lines: list[Lines] = []
        self._halted: deque[tuple[str, int]] = deque()
        self._halts = 0
        self._begun: dict[str, Value] = {}
        """Listener calls in flight, by the name of their process in the history."""
        self._open: set[tuple[str, str, int]] = set()
        """Messages that were put and are not done: subscription, row and number."""
        self._early: set[tuple[str, str, int]] = set()
        """Messages that were done before their put was answered."""

    async def prepare(self, around: WorkloadSurroundings) -> None:
        """Create the table and the rowlog, and start its worker processes. Raises BrokerError."""
        beneath = _beneath(around)
        self._id = f"{self.name}-{around.chance.getrandbits(32):08x}"
        try:
            rows = Thrift2Rows(beneath.gateways)
            try:
                await rows.make_table(self._id.encode(), FAMILY.encode(), [])
            finally:
                await rows.close()
            self._log = self._made(beneath)
            await self._log.open()
            for name in SUBSCRIPTIONS:
                await self._log.subscribe(Subscription(name, max_tries=0, backoff_ms_first=100))
        except TableError as error:
            raise Unavailable(f"The rowlog can't be created: {error}.") from error
        given = {
            "table": self._id,
            "id": self._id,
            "subscriptions": SUBSCRIPTIONS,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "fails": FAILS,
        }

        def halted(name: str) -> None:
            self._halted.append((name, time.monotonic_ns()))

        logs = await beneath.begin(given, halted)
        self._lines = [Lines(path, self._id) for path in logs.values()]

    async def run(self, around: WorkloadSurroundings, stop: asyncio.Event) -> None:
        """Put messages until ``stop`` is set, and record the calls of the listeners."""
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._follow(around))
                writing = [
                    group.create_task(self._write(around, each, stop)) for each in range(WRITERS)
                ]
                await asyncio.gather(*writing)
                reading.cancel()
        finally:
            if self._log is not None:
                await self._log.close()

    async def finish(self, around: WorkloadSurroundings) -> None:
        """Wait until all messages are done, at most ``final_s``, and end the worker processes."""
        asked: Value = {"log": self._id, "subscriptions": list(SUBSCRIPTIONS)}
        ending = around.history.invoke("final", "row-final", "", asked)
        deadline = around.clock.monotonic() + around.scale.final_s
        self._read(around)
        while self._open and around.clock.monotonic() < deadline:
            await around.clock.sleep(LOOK_S)
            self._read(around)
        await _beneath(around).end()
        self._read(around)
        ending.ok({"open": len(self._open)})

    def _made(self, beneath: Beneath) -> RowLog:
        return RowLog(
            None,
            self._id,
            id=self._id,
            family=FAMILY,
            synced=True,
            thrift2=beneath.gateways,
            zookeeper=beneath.zookeepers,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )

    # Putting.

    async def _write(self, around: WorkloadSurroundings, number: int, stop: asyncio.Event) -> None:
        """Put one message after another, into rows that no other writer uses."""
        rows = [f"row-{number}-{each}" for each in range(ROWS)]
        while not stop.is_set():
            with suppress(BrokerError, TableError):
                await self._put(around, f"writer-{number}", around.chance.choice(rows))
            await around.clock.sleep(around.scale.pause_s * around.chance.random() * 2)

    async def _put(self, around: WorkloadSurroundings, process: str, row: str) -> None:
        assert self._log is not None, "prepared first"
        asked: Value = {"log": self._id, "row": row}
        ending = around.history.invoke(process, "row-put", "", asked)
        try:
            message = await self._log.put(row.encode(), {b"rowlog:value": b"1"}, b"payload")
        except BrokerError as error:
            note(ending, error)
            raise
        except BaseException as error:
            ending.unknown(type(error).__name__)
            raise
        assert message is not None, "there are subscriptions"
        ending.ok({"seq": message.seq})
        put = {(name, row, message.seq) for name in SUBSCRIPTIONS}
        self._open |= put - self._early
        self._early -= put

    # The logs of the processes.

    async def _follow(self, around: WorkloadSurroundings) -> None:
        while True:
            self._read(around)
            await around.clock.sleep(LOOK_S)

    def _read(self, around: WorkloadSurroundings) -> None:
        """Write new events to the history, with their own times."""
        while self._halted:
            self._halt(around, *self._halted.popleft())
        for told in (each for lines in self._lines for each in lines.read()):
            if told["kind"] in {"begin", "end"}:
                self._offer(around, told)
            elif told["kind"] == "halted":
                self._halt(around, told["process"], told["time_ns"])

    def _halt(self, around: WorkloadSurroundings, name: str, time_ns: int) -> None:
        self._halts += 1
        process, asked = f"{name} halt {self._halts}", {"processor": name}
        self._tell(around, process, "row-halt", asked, time_ns)
        self._tell(around, process, "row-halt", {}, time_ns, is_over=True)

    def _offer(self, around: WorkloadSurroundings, told: dict[str, Any]) -> None:
        process = f"{told['process']} {told['call']}"
        if told["kind"] == "begin":
            asked = {name: told[name] for name in ("row", "seq", "subscription")}
            self._begun[process] = asked
            asked |= {"log": self._id, "processor": told["process"]}
            self._tell(around, process, "row-offer", asked, told["time_ns"])
            return
        asked = self._begun.pop(process)
        if told["done"]:
            done = (asked["subscription"], asked["row"], asked["seq"])
            if done in self._open:
                self._open.remove(done)
            else:
                self._early.add(done)
        answer = {"done": told["done"]}
        self._tell(around, process, "row-offer", answer, told["time_ns"], is_over=True)

    @staticmethod
    def _tell(
        around: WorkloadSurroundings,
        process: str,
        op: str,
        value: Value,
        time_ns: int,
        *,
        is_over: bool = False,
    ) -> None:
        kind = "ok" if is_over else "invoke"
        around.history.write(Event(process, kind, op, "", value, None, None, None, time_ns))  # type: ignore[arg-type]


def _beneath(around: WorkloadSurroundings) -> Beneath:
    if around.beneath is None:
        raise Unavailable(
            "The workload rowlog needs HBase and ZooKeeper, but it can't reach them here."
        )
    return around.beneath

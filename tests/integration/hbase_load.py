"""Clients of logs over a real HBase, whose history the checkers judge.

Each topic has two nodes, which claim it from each other now and then. Publishers append through either node, and readers
read in both directions. They go on until a test stops them, also while servers are killed. Ids are drawn as a leader
draws them: above the pointer, in order.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.model import (
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    LogKey,
    TopicId,
    log_key,
    log_key_before,
    timestamp_of,
)
from broker.storage.hbase.gateways import GatewayAddress, Gateways
from broker.storage.hbase.schema import HBaseAdmin, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.hold import LogHold
from broker.storage.keys import LogId
from broker.storage.log import Logs
from broker.storage.ownpage import PageBounds
from chaos.bare import StoredRow, append, back_of, rows_of
from chaos.history import History

DEADLINE_S = 90
BACK = 100
BOUNDS = PageBounds(bytes_max=32 << 10, cells_max=60)
"""Small, so that pages are rolled while servers are killed."""
CALL_S = 4.0
"""Shorter than a gateway's timeout, so that a call may end as unknown before the gateway makes it."""


class Node:
    """One node's hold on one topic; it is claimed again whenever it has ended."""

    def __init__(self, name: str, logs: Logs, log: LogId) -> None:
        self.name = name
        self.logs = logs
        self.log = log
        self.hold: LogHold | None = None
        self._claiming = asyncio.Lock()
        self._next_ms = 0

    async def led(self) -> LogHold:
        async with self._claiming:
            if self.hold is None or self.hold.done:
                self.hold = await self.logs.claim(self.log, self.name)
                self._next_ms = timestamp_of(self.hold.pointer) + 1
            return self.hold

    def ids(self, count: int) -> list[LogKey]:
        self._next_ms += 1
        return [log_key(self._next_ms, number) for number in range(count)]


class Load:
    """All clients. ``acknowledged`` counts rows, in total and by topic."""

    def __init__(self, stores: Sequence[Logs], topics: int, *, takeovers: float) -> None:
        self.stores = stores
        self.logs = [LogId(TopicId("default", f"load{number}"), 1) for number in range(topics)]
        self.history = History(time.monotonic_ns)
        self.acknowledged = dict.fromkeys(self.logs, 0)
        self.unknown = self.refused = 0
        self.silence_s = 0.0
        """The longest time in which a topic acknowledged no append."""
        self._takeovers = takeovers
        self._chance = random.Random(1)
        self._stopped = False
        self._changed = asyncio.Condition()
        self._last = dict.fromkeys(self.logs, time.monotonic())
        self._nodes = {
            log: [Node(f"n{number}", store, log) for number, store in enumerate(stores)]
            for log in self.logs
        }
        self._running: list[asyncio.Task[None]] = []

    def start(self, publishers: int = 2) -> None:
        for log in self.logs:
            for number in range(publishers):
                self._begin(self._publish(f"p{number} {log.topic}", log))
            self._begin(self._read(f"r {log.topic}", log))

    def _begin(self, work) -> None:
        self._running.append(asyncio.create_task(work))

    async def more(self, rows: int) -> None:
        """Wait until every topic has acknowledged that many rows more."""
        wanted = {log: count + rows for log, count in self.acknowledged.items()}

        def there() -> bool:
            self._look()
            return all(self.acknowledged[log] >= wanted[log] for log in self.logs)

        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(there)
        except TimeoutError:
            raise AssertionError(f"nothing more: {self.state()}, wanted {wanted}") from None

    def state(self) -> str:
        return (
            f"acknowledged {self.acknowledged}, unknown {self.unknown}, refused {self.refused}, "
            f"silent at most {self.silence_s:.1f} s"
        )

    def _look(self) -> None:
        for task in self._running:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()

    async def finish(self) -> None:
        """End all clients, and read every log to its end."""
        self._stopped = True
        await asyncio.gather(*self._running)
        for log in self.logs:
            await self._nodes[log][0].led()  # A new claim fences all late changes.
            found = await self._follow("final", self.stores[0], log, LOG_KEY_MIN, None)
            assert found is not None, f"{log.topic} can't be read"

    async def _publish(self, name: str, log: LogId) -> None:
        number = 0
        while not self._stopped:
            number += 1
            other = self._chance.random() < self._takeovers
            count = self._chance.choice((1, 1, 3, 20, 200))
            payloads = [f"{name}.{number}.{place}" for place in range(count)]
            await self._append(name, self._nodes[log][other], payloads)

    async def _append(self, name: str, node: Node, payloads: list[str]) -> None:
        try:
            hold = await node.led()
        except BrokerError:
            return
        asked = {"payloads": payloads, "pointer": None, "key": None, "generation": 1}
        ids = node.ids(len(payloads))
        ending = self.history.invoke(name, "publish", str(node.log.topic), asked)
        ending.node, ending.epoch = node.name, hold.epoch
        try:
            await append(hold, ids, [payload.encode() for payload in payloads])
        except BrokerError as error:
            if error.outcome == "refused":
                self.refused += 1
                ending.fail(repr(error))
            else:
                self.unknown += 1
                ending.unknown(repr(error))
            return
        ending.ok({"last": ids[-1].hex(), "replayed": False}, ids[0].hex())
        await self._count(node.log, len(payloads))

    async def _count(self, log: LogId, rows: int) -> None:
        now = time.monotonic()
        self.silence_s = max(self.silence_s, now - self._last[log])
        self._last[log] = now
        self.acknowledged[log] += rows
        async with self._changed:
            self._changed.notify_all()

    async def _read(self, name: str, log: LogId) -> None:
        """Follow the log, and sometimes read it backwards."""
        after, back = LOG_KEY_MIN, 0
        while not self._stopped:
            logs = self._chance.choice(self.stores)
            rows = await self._follow(f"{name} follows", logs, log, after, f"{name} follows")
            after = rows[-1].id if rows else after
            back += 1
            await self._look_back(f"{name} back {back}", logs, log)

    async def _follow(
        self, name: str, logs: Logs, log: LogId, after: LogKey, cursor: str | None
    ) -> list[StoredRow] | None:
        """Read to the end."""
        asked = {"after": after.hex(), "through": LOG_KEY_MAX.hex(), "reverse": False}
        asked |= {"cursor": cursor, "generation": 1}
        ending = self.history.invoke(name, "read", str(log.topic), asked)
        try:
            rows = await rows_of(logs, log, after)
        except BrokerError as error:
            ending.fail(repr(error))
            return None
        seen = rows[-1].id if rows else after
        ending.ok({"rows": told(rows), "seen": seen.hex(), "floor": "", "pointer": seen.hex()})
        return rows

    async def _look_back(self, name: str, logs: Logs, log: LogId) -> None:
        """Read the last messages, the last first."""
        asked = {"after": LOG_KEY_MIN.hex(), "through": LOG_KEY_MAX.hex(), "reverse": True}
        asked |= {"cursor": None, "generation": 1}
        ending = self.history.invoke(name, "read", str(log.topic), asked)
        try:
            rows, is_whole = await back_of(logs, log, BACK)
        except BrokerError as error:
            ending.fail(repr(error))
            return
        first = LOG_KEY_MIN if is_whole else log_key_before(rows[-1].id)
        last = rows[0].id.hex() if rows else LOG_KEY_MIN.hex()
        ending.ok({"rows": told(rows), "seen": first.hex(), "floor": "", "pointer": last})


def told(rows: Sequence[StoredRow]) -> list[list[str | None]]:
    """Return rows in the format of histories."""
    return [[row.id.hex(), (row.payload or b"").decode(), None] for row in rows]


@asynccontextmanager
async def loaded(
    addresses: Sequence[GatewayAddress], prefix: str, *, topics: int, takeovers: float
):
    """Give a load over two nodes with separate connections, in new tables."""
    schema = Schema("default", prefix)
    nodes = [Gateways(addresses, connections_max=8, call_s=CALL_S) for _ in range(2)]
    try:
        await HBaseAdmin(nodes[0], schema).init(regions=4)
        stores = [Logs(HBaseTable(node, schema), SystemClock(), bounds=BOUNDS) for node in nodes]
        load = Load(stores, topics, takeovers=takeovers)
        load.start()
        yield load
    finally:
        for node in nodes:
            await node.close()

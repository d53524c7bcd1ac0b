"""Clients of the log store over a real HBase, whose history the checkers judge.

Each topic has two nodes that claim it from each other now and then, publishers that append through
whichever node they come to, and readers in both directions. They go on until told to stop, through
whatever is killed meanwhile. Ids are taken as a leader takes them: above the pointer, in order.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager

from broker.clock import SystemClock
from broker.errors import BrokerError
from broker.model import ROW_ID_MAX, ROW_ID_MIN, RowId, TopicId, row_id, timestamp_of
from broker.storage.hbase_gateways import Address, Gateways
from broker.storage.hbase_cells import HBaseCells
from broker.storage.hbase_schema import HBaseAdmin, Schema
from broker.storage.keys import LogId
from broker.storage.ports import Batch, Hold, Rows, Segment
from broker.storage.tables import TableLogStore
from broker.testing.history import History

DEADLINE_S = 90
PAGE = 5_000
CALL_S = 4.0
"""Less than a gateway may take, so that calls also end unknown that it is still about to do."""


class Node:
    """One node's hold on one topic, claimed again whenever it is over."""

    def __init__(self, name: str, store: TableLogStore, log: LogId) -> None:
        self.name = name
        self.store = store
        self.log = log
        self.hold: Hold | None = None
        self._claiming = asyncio.Lock()
        self._next_ms = 0

    async def led(self) -> Hold:
        async with self._claiming:
            if self.hold is None or self.hold.done:
                self.hold = await self.store.claim(self.log, self.name)
                self._next_ms = timestamp_of(self.hold.control.pointer) + 1
            return self.hold

    def ids(self, count: int) -> list[RowId]:
        self._next_ms += 1
        return [row_id(self._next_ms, number) for number in range(count)]


class Load:
    """All clients. ``acknowledged`` counts rows, of all topics together and by topic."""

    def __init__(self, stores: Sequence[TableLogStore], topics: int, *, takeovers: float) -> None:
        self.stores = stores
        self.logs = [LogId(TopicId("default", f"load{number}"), 1) for number in range(topics)]
        self.history = History(time.monotonic_ns)
        self.acknowledged = dict.fromkeys(self.logs, 0)
        self.unknown = self.refused = 0
        self.silence_s = 0.0
        """The longest time in which a topic acknowledged nothing."""
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
        """Let everybody end, and read every log to its end."""
        self._stopped = True
        await asyncio.gather(*self._running)
        for log in self.logs:
            await self._nodes[log][0].led()  # Whatever is late is fenced.
            after, more = ROW_ID_MIN, True
            while more:
                page = await self._page("final", self.stores[0], log, after, PAGE)
                assert page is not None, f"{log.topic} can't be read"
                after, more = page.seen, page.more

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
            segment = Segment(ids, [payload.encode() for payload in payloads])
            await node.store.append(hold, Batch([segment], ids[-1]))
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
        """Follow the log, and look back over some of it."""
        after, back = ROW_ID_MIN, 0
        while not self._stopped:
            store = self._chance.choice(self.stores)
            page = await self._page(f"{name} follows", store, log, after, 500, cursor=True)
            if page is not None and page.control is not None and page.rows:
                after = page.seen
            back += 1
            await self._page(f"{name} back {back}", store, log, ROW_ID_MIN, 100, reverse=True)

    async def _page(
        self,
        name: str,
        store: TableLogStore,
        log: LogId,
        after: RowId,
        rows_max: int,
        *,
        reverse: bool = False,
        cursor: bool = False,
    ) -> Rows | None:
        asked = {
            "after": after.hex(),
            "through": ROW_ID_MAX.hex(),
            "reverse": reverse,
            "cursor": name if cursor else None,
            "generation": 1,
        }
        ending = self.history.invoke(name, "read", str(log.topic), asked)
        try:
            page = await store.scan(
                log, after, ROW_ID_MAX, rows_max=rows_max, bytes_max=1 << 22, reverse=reverse
            )
        except BrokerError as error:
            ending.fail(repr(error))
            return None
        control = page.control
        ending.ok(
            {
                "rows": [[row.id.hex(), (row.payload or b"").decode(), None] for row in page.rows],
                "seen": page.seen.hex(),
                "floor": "" if control is None else control.floor.hex(),
                "pointer": "" if control is None else control.pointer.hex(),
            }
        )
        return page


@asynccontextmanager
async def loaded(addresses: Sequence[Address], prefix: str, *, topics: int, takeovers: float):
    """A load over two nodes with connections of their own, in tables of its own."""
    schema = Schema("default", prefix)
    nodes = [Gateways(addresses, connections_max=8, call_s=CALL_S) for _ in range(2)]
    try:
        await HBaseAdmin(nodes[0], schema).init(regions=4)
        stores = [TableLogStore(HBaseCells(node, schema), SystemClock()) for node in nodes]
        load = Load(stores, topics, takeovers=takeovers)
        load.start()
        yield load
    finally:
        for node in nodes:
            await node.close()

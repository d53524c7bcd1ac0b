"""Readers of an explored world: of anything, of the log in order, and from a memory of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

from broker.errors import BrokerError
from broker.model import (
    ROW_ID_MAX,
    ROW_ID_MIN,
    RowId,
    Topic,
    TransactionUse,
    first_row_at,
    row_before,
)
from broker.storage.control import Control, State
from broker.storage.keys import LogId
from broker.storage.ports import Row, Rows
from broker.testing.history import History
from broker.testing.world import TOPIC, TTL_S, Node, NodeDied
from broker.topics.reading import scan_payloads

ALL_ROWS = 1 << 20
BYTES_MAX = 1 << 24


class ReadWorld(Protocol):
    """What readers need of the world."""

    chance: random.Random
    generation: int
    history: History
    ids: list[RowId]
    nodes: list[Node]
    pause_ms: float

    def any_node(self) -> Node:
        """Return one of the nodes."""

    async def pause(self, mean_ms: float) -> None:
        """Let about so long pass."""


class Readers:
    """Reads through the nodes' stores and tells the history what they answer."""

    def __init__(self, world: ReadWorld) -> None:
        """Read in ``world``."""
        self._world = world

    async def anything(self) -> None:
        """Read anything, in both directions, in pages of any width."""
        for number in count():
            await self._world.pause(3 * self._world.pause_ms)
            after, through = ROW_ID_MIN, ROW_ID_MAX
            if self._world.ids and self._world.chance.random() < 0.5:
                after = row_before(self._world.chance.choice(self._world.ids))
            if self._world.ids and self._world.chance.random() < 0.3:
                through = self._world.chance.choice(self._world.ids)
            if self._world.chance.random() < 0.2:
                after = row_before(first_row_at(self._world.any_node().clock.now_ms() - 50))
            page = await self.read(
                f"reader {number}",
                after,
                through,
                rows_max=self._world.chance.choice((1, 2, 5, ALL_ROWS)),
                reverse=self._world.chance.random() < 0.3,
            )
            for row in page.rows if page is not None else []:
                if row.payload is None:
                    await self.read_payloads(f"reader {number}", self._world.any_node(), row)

    async def consumer(self) -> None:
        """Follow the log by its ids."""
        after, generation = ROW_ID_MIN, self._world.generation
        while True:
            await self._world.pause(2 * self._world.pause_ms)
            if generation != self._world.generation:
                after, generation = ROW_ID_MIN, self._world.generation
            width = self._world.chance.choice((1, 3, ALL_ROWS))
            page = await self.read("consumer", after, ROW_ID_MAX, rows_max=width)
            if page is not None and page.control is not None and page.rows:
                after = page.seen

    async def cached(self) -> None:
        """Keep what was read, and read again only if the control row shows that it must be."""
        shown: tuple[int, int, int] | None = None
        rows: list[Row] = []
        after = ROW_ID_MIN
        while True:
            await self._world.pause(3 * self._world.pause_ms)
            node, generation = self._world.nodes[0], self._world.generation
            asked = _asked(ROW_ID_MIN, ROW_ID_MAX, generation)
            ending = self._world.history.invoke("cached reader", "read", str(TOPIC), asked)
            try:
                control = await node.run(node.store.head(LogId(TOPIC, generation)))
                if control is None or control.generation != generation:
                    ending.fail("nothing to read")
                    continue
                state = (control.generation, control.epoch, control.edits)
                if state != shown:
                    rows, after, shown = [], ROW_ID_MIN, None
                through = control.pointer
                page = await node.run(_scan(node, generation, after, through, ALL_ROWS))
                if not _is_same(page.control, state):
                    rows, after, shown = [], ROW_ID_MIN, None
                    ending.fail("changed meanwhile")
                    continue
            except (BrokerError, NodeDied) as error:
                ending.fail(str(error))
                continue
            rows = [row for row in [*rows, *page.rows] if row.id >= control.floor]
            after, shown = page.seen, state
            ending.ok(_told(rows, page, generation))

    async def read(
        self, name: str, after: RowId, through: RowId, *, rows_max: int, reverse: bool = False
    ) -> Rows | None:
        """Read a page through some node. A name without a number is one consumer's."""
        generation, node = self._world.generation, self._world.any_node()
        asked = _asked(after, through, generation)
        asked.update(reverse=reverse, cursor=name if name == "consumer" else None)
        ending = self._world.history.invoke(name, "read", str(TOPIC), asked)
        try:
            page = await node.run(
                _scan(node, generation, after, through, rows_max, reverse=reverse)
            )
        except (BrokerError, NodeDied) as error:
            ending.fail(str(error))
            return None
        ending.ok(_told(page.rows, page, generation))
        return page

    async def read_payloads(self, name: str, node: Node, row: Row) -> None:
        """Read what a reference shows."""
        number = row.payload_log
        assert number is not None
        generation = self._world.generation
        asked = {"number": number, "generation": generation}
        ending = self._world.history.invoke(name, "payloads", str(TOPIC), asked)
        topic = Topic(TOPIC, generation, {}, TTL_S, TransactionUse.OPTIONAL)
        try:
            page = await node.run(scan_payloads(node.around, topic, number, ROW_ID_MIN, ALL_ROWS))
        except (BrokerError, NodeDied) as error:
            ending.fail(str(error))
            return
        ending.ok({"rows": [[row.id.hex(), (row.payload or b"").decode()] for row in page.rows]})


async def _scan(
    node: Node,
    generation: int,
    after: RowId,
    through: RowId,
    rows_max: int,
    *,
    reverse: bool = False,
) -> Rows:
    log = LogId(TOPIC, generation)
    return await node.store.scan(
        log, after, through, rows_max=rows_max, bytes_max=BYTES_MAX, reverse=reverse
    )


def _asked(after: RowId, through: RowId, generation: int) -> dict[str, Any]:
    return {"after": after.hex(), "through": through.hex(), "generation": generation}


def _told(rows: Sequence[Row], page: Rows, generation: int) -> dict[str, Any]:
    control = page.control
    is_there = (
        control is not None
        and control.generation == generation
        and control.state is not State.DELETED
    )
    return {
        "rows": [
            [row.id.hex(), None if row.payload is None else row.payload.decode(), row.pointer]
            for row in rows
        ],
        "seen": page.seen.hex(),
        "floor": control.floor.hex() if control is not None and is_there else "",
        "pointer": control.pointer.hex() if control is not None and is_there else "",
    }


def _is_same(control: Control | None, state: tuple[int, int, int]) -> bool:
    return control is not None and (control.generation, control.epoch, control.edits) == state

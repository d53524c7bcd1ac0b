"""A cluster as one node sees it, with nobody behind it: for what is asked of a cluster over HTTP.

The other nodes answer as long as nothing is said to be wrong with them.
"""

from __future__ import annotations

import asyncio
import json

from broker.api.cluster import OWN_PATH, ClusterView, own_view
from broker.clock import Clock
from broker.coordination.ports import Contact, Members, NodeInfo
from broker.model import TopicId
from broker.storage.call_health import CallHealth
from broker.storage.records import RecordStore


class FewNodes:
    """Nodes 0, 1, … of which 0 is the one that is asked. What is seen can be set."""

    def __init__(self, records: RecordStore, clock: Clock, *, nodes: int = 3) -> None:
        """Let ``nodes`` nodes live."""
        self.clock = clock
        self.records = records
        self.nodes = {
            number: NodeInfo(number, f"life-{number}", f"http://node-{number}:8080", "1.0", 1)
            for number in range(nodes)
        }
        self.wrong: dict[str, Exception | bytes | None] = {}
        """By URL: what asking raises or gets; None: it never ends."""
        self.hints: list[str] = []
        self.led: dict[TopicId, int] = {}
        """What every node leads that ``led_by`` says nothing of."""
        self.led_by: dict[int, dict[TopicId, int]] = {}
        self.slots = 0
        self.contact = Contact.CONNECTED
        self.session: str | None = "0x1"
        self.skew_ms: int | None = None
        self.health = CallHealth(clock.now_ms)

    def view(self, node: int = 0) -> ClusterView:
        """Return what the handlers of a node need."""
        return ClusterView(
            me=lambda: self.nodes[node],
            members=lambda: Members(1, self.nodes),
            contact=lambda: self.contact,
            session=lambda: self.session,
            slots_led=lambda: self.slots,
            topics_led=lambda: self.led_by.get(node, self.led),
            storage=lambda: self.health.so_far,
            clock_skew_ms=lambda: self.skew_ms,
            ask=self._ask,
            hint=self._hint,
            records=self.records,
            clock=self.clock,
            started_at=self.clock.monotonic(),
            answer_s_max=0.05,
        )

    async def _ask(self, url: str, path: str, _: float) -> bytes:
        if url in self.wrong:
            wrong = self.wrong[url]
            if isinstance(wrong, bytes):
                return wrong
            if wrong is not None:
                raise wrong
            await asyncio.Event().wait()
        assert path.startswith(OWN_PATH)
        node = next(info.instance for info in self.nodes.values() if info.url == url)
        wanted = path.partition("?topics=")[2] or "no"
        return json.dumps(own_view(self.view(node), wanted)).encode()

    async def _hint(self, what: str) -> None:
        self.hints.append(what)

    def stop(self, node: int) -> None:
        """Let a node say that it is stopping."""
        self.nodes[node] = self.nodes[node]._replace(draining=True)

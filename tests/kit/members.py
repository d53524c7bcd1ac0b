"""A cluster as one node sees it, without other processes: for tests of the cluster's HTTP routes.

The other nodes answer, unless a test sets an error for them.
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
    """Nodes 0, 1, …; node 0 answers the requests. Tests set the state that it sees."""

    def __init__(self, records: RecordStore, clock: Clock, *, nodes: int = 3) -> None:
        """Begin with ``nodes`` live nodes."""
        self.clock = clock
        self.records = records
        self.nodes = {
            number: NodeInfo(number, f"life-{number}", f"http://node-{number}:8080", "1.0", 1)
            for number in range(nodes)
        }
        self.wrong: dict[str, Exception | bytes | None] = {}
        """By URL: the error or answer of a request to that node; None: it never answers."""
        self.hints: list[str] = []
        self.led: dict[TopicId, int] = {}
        """The topics led by every node that is not in ``led_by``."""
        self.led_by: dict[int, dict[TopicId, int]] = {}
        self.slots = 0
        self.contact = Contact.CONNECTED
        self.session: str | None = "0x1"
        self.skew_ms: int | None = None
        self.health = CallHealth(clock.now_ms)

    def view(self, node: int = 0) -> ClusterView:
        """Return a node's view of the cluster, for its handlers."""
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

    async def _hint(self, name: str) -> None:
        self.hints.append(name)

    def stop(self, node: int) -> None:
        """Let a node announce that it is draining."""
        self.nodes[node] = self.nodes[node]._replace(draining=True)

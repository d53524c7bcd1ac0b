"""A cluster as one node sees it, without other processes: for tests of the cluster's HTTP routes.

The other nodes answer, unless a test sets an error for them.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from broker.api.cluster import OWN_PATH, ClusterView, own_view
from broker.clock import Clock
from broker.coordination.ports import Contact, Members, NodeInfo
from broker.http.answer import HttpAnswer
from broker.http.outbound import Ask
from broker.model import TopicId
from broker.storage.call_health import CallHealth
from broker.storage.records import RecordStore


class _Parts:
    """The parts of one node, as its view reads them."""

    def __init__(self, few: FewNodes, node: int) -> None:
        self._few = few
        self._node = node
        self.claims = SimpleNamespace(clocks=self)

    @property
    def me(self) -> NodeInfo:
        return self._few.nodes[self._node]

    @property
    def members(self) -> Members:
        return Members(1, self._few.nodes)

    @property
    def session(self) -> int | None:
        return self._few.session

    @property
    def slots_led(self) -> int:
        return self._few.slots

    @property
    def skew_ms(self) -> int | None:
        return self._few.skew_ms

    @property
    def contact(self) -> Contact:
        return self._few.contact

    def epochs(self) -> dict[TopicId, int]:
        return self._few.led_by.get(self._node, self._few.led)

    async def hint(self, name: str) -> None:
        self._few.hints.append(name)

    async def exchange(self, url: str, ask: Ask, _: float) -> HttpAnswer:
        few = self._few
        wrong = few.wrong.get(url, b"")
        if wrong is None:
            await asyncio.Event().wait()
        if isinstance(wrong, Exception):
            raise wrong
        assert ask.path.startswith(OWN_PATH)
        node = next(info.instance for info in few.nodes.values() if info.url == url)
        wanted = ask.path.partition("?topics=")[2] or "no"
        return HttpAnswer(200, {}, wrong or json.dumps(own_view(few.view(node), wanted)).encode())


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
        self.session: int | None = 1
        self.skew_ms: int | None = None
        self.health = CallHealth(clock.now_ms)

    def view(self, node: int = 0) -> ClusterView:
        """Return a node's view of the cluster, for its handlers."""
        parts: Any = _Parts(self, node)
        return ClusterView(
            coordinator=parts,
            membership=parts,
            tenure=parts,
            leaders=parts,
            peers=parts,
            records=self.records,
            health=self.health,
            clock=self.clock,
            started_at=self.clock.monotonic(),
            answer_s_max=0.05,
        )

    def stop(self, node: int) -> None:
        """Let a node announce that it is draining."""
        self.nodes[node] = self.nodes[node]._replace(draining=True)

"""Build a node's ``ClusterView`` from the parts of the node.

The node makes its routes before it listens, and joins the cluster only after it listens. So parts that exist only
after joining are passed as functions, and called for each request::

    health = CallHealth(clock.now_ms)
    stores = await open_hbase(config.hbase, clock, lambda end: health.ended(end.kind, end.message))
    view = cluster_view(
        coordinator=coordinator, membership=lambda: self._membership,
        slots_led=lambda: self._tenure.slots_led if self._tenure else 0,
        leaders=topics.leaders, exchange=peers.exchange, records=stores.records,
        health=health, clock=clock)
    make_routes(topics, config, health_handlers, view)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from broker.api.cluster import ClusterView
from broker.clock import Clock
from broker.coordination.ports import Coordinator, Membership
from broker.errors import Unavailable
from broker.http.answer import HttpAnswer, NoAnswer, NotSent
from broker.http.outbound import Ask
from broker.operations.media_types import JSON
from broker.storage.call_health import CallHealth
from broker.storage.records import RecordStore
from broker.topics.leaders import Leaders

Exchange = Callable[[str, Ask, float], Awaitable[HttpAnswer]]
"""Sends a request to the node at a URL within so many seconds. Raises NotSent, NoAnswer."""

_ANSWER_JSON: Final = {"Accept": JSON}


class Get(NamedTuple):
    """A GET request for a path, in the form that ``Exchange`` takes."""

    path: str
    method: str = "GET"
    headers: Mapping[str, str] = _ANSWER_JSON
    body: bytes = b""


def cluster_view(  # noqa: PLR0913 - The parts of a node, each by name.
    *,
    coordinator: Coordinator,
    membership: Callable[[], Membership | None],
    slots_led: Callable[[], int],
    leaders: Leaders,
    exchange: Exchange,
    records: RecordStore,
    health: CallHealth,
    clock: Clock,
) -> ClusterView:
    """Return the view of a node that starts now. ``membership`` returns None until the node has joined."""

    def joined() -> Membership:
        found = membership()
        if found is None:
            raise Unavailable("This node has not joined its cluster yet.", retry_after_s=1)
        return found

    def session() -> str | None:
        number = joined().session
        return f"{number:#x}" if number else None

    async def ask(url: str, path: str, seconds: float) -> bytes:
        try:
            reply = await exchange(url, Get(path), seconds)
        except (NotSent, NoAnswer) as error:
            raise Unavailable(f"It gave no answer: {error}") from error
        if reply.status != 200:
            raise Unavailable(f"It answered with status {reply.status}.")
        return reply.body

    return ClusterView(
        me=lambda: joined().me,
        members=lambda: joined().members,
        contact=lambda: coordinator.contact,
        session=session,
        slots_led=slots_led,
        topics_led=leaders.epochs,
        storage=lambda: health.so_far,
        clock_skew_ms=lambda: leaders.claims.clocks.skew_ms,
        ask=ask,
        hint=coordinator.hint,
        records=records,
        clock=clock,
        started_at=clock.monotonic(),
    )

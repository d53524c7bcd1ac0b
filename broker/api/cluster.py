"""The views of a cluster: one node's view of itself, and one node's view of all nodes.

A node makes its own view from memory: it asks no storage, no coordinator and no other node. For the view of all
nodes, it asks all members for their own views in parallel, within a bounded time. A node that does not answer is
shown as silent. So the view works also while parts of the cluster fail, when operators need it most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

import orjson

from broker.clock import Clock
from broker.coordination.claims import Written, read_clock
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.placement import Placement, read_placement
from broker.coordination.ports import Coordinator, Membership, NodeInfo
from broker.errors import BadRequest, BrokerError, Unavailable
from broker.http.answer import NoAnswer, NotSent
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import TopicId, check_namespace, check_topic
from broker.moments import rfc3339
from broker.operations.media_types import JSON
from broker.operations.parameters import TOPICS_NAMED_MAX
from broker.operations.replies import (
    ClusterNode,
    ClusterStatus,
    CoordinatorView,
    LedTopic,
    Member,
    StorageView,
)
from broker.routing.peers import Peers
from broker.storage.call_health import CallHealth
from broker.storage.records import RecordStore
from broker.topics.leaders import Leaders
from broker.topics.reserved import is_reserved

OWN_PATH: Final = "/v1/cluster/node"
ANSWER_S_MAX: Final = 2.0
CLOCKS_MAX: Final = 8
"""The most nodes that are asked for their time."""
CLOCK_S_MAX: Final = 1.0

Ask = Callable[[str, str, float], Awaitable[bytes]]
"""GETs a path from the node at a URL, within so many seconds. Raises BrokerError, OSError, TimeoutError."""


class _Get(NamedTuple):
    """A GET request for a path."""

    path: str
    method: str = "GET"
    headers: Mapping[str, str] = {"Accept": JSON}
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The parts of a node that these handlers need.

    Attributes:
        coordinator, membership: the node among the others.
        tenure: knows the slots whose lease this node has.
        leaders: know the topics whose logs this node holds, and how far its clock was ahead of the storage's.
        peers: reach the other nodes.
        records: the store of pins and drained nodes.
        health: the counts of calls and errors of the storage.
        clock: the node's clock.
        started_at: when the node started, in monotonic seconds.
        answer_s_max: how long other nodes and the records may take for a view of all nodes.
    """

    coordinator: Coordinator
    membership: Membership
    tenure: ClusterTenure
    leaders: Leaders
    peers: Peers
    records: RecordStore
    health: CallHealth
    clock: Clock
    started_at: float
    answer_s_max: float = ANSWER_S_MAX

    @property
    def me(self) -> NodeInfo:
        """This node, as last announced."""
        return self.membership.me

    @property
    def nodes(self) -> Mapping[int, NodeInfo]:
        """The live nodes, as last heard, with this node."""
        return self.membership.members.nodes

    async def ask(self, url: str, path: str, seconds: float) -> bytes:
        """GET a path from the node at a URL, and return the body of a 200. Raises Unavailable."""
        try:
            reply = await self.peers.exchange(url, _Get(path), seconds)
        except (NotSent, NoAnswer) as error:
            raise Unavailable(f"It gave no answer: {error}") from error
        if reply.status != 200:
            raise Unavailable(f"It answered with status {reply.status}.")
        return reply.body


class NodeReport(NamedTuple):
    """The result of asking one node: its view of itself, or the problem."""

    view: ClusterNode | None
    problem: str | None = None


class ClusterViewHandlers:
    """The handlers of the views."""

    def __init__(self, view: ClusterView) -> None:
        """Keep the view."""
        self._view = view

    async def cluster_node(self, request: Request) -> Answer:
        """Answer this node's view of itself."""
        return json_reply(own_view(self._view, _wanted_topics(request)))

    async def cluster(self, request: Request) -> Answer:
        """Answer the views of all nodes."""
        view, wanted = self._view, _wanted_topics(request)
        nodes = [info for _, info in sorted(view.nodes.items())]
        patience_s = _patience_s(view, request)

        async def report(info: NodeInfo) -> NodeReport:
            if info.instance == view.me.instance:
                return NodeReport(own_view(view, wanted))
            return await _ask_report(info, view.ask, patience_s, wanted)

        asking = asyncio.gather(*map(report, nodes))
        placement, asked = await asyncio.gather(_placement(view, patience_s), asking)
        return json_reply(_status(view, nodes, asked, placement))


def own_view(view: ClusterView, wanted: str = "no") -> ClusterNode:
    """Return a node's view of itself, as values for JSON.

    ``wanted`` selects the led topics to name: no (none), yes (all), or one ``ns/topic``.
    """
    me, storage = view.me, view.health.so_far
    led = {topic: epoch for topic, epoch in view.leaders.epochs().items() if not is_reserved(topic)}
    session = view.membership.session
    return ClusterNode(
        node=me.instance,
        incarnation=me.incarnation,
        url=me.url,
        version=me.version,
        protocol=me.protocol,
        draining=me.draining,
        slots_led=view.tenure.slots_led,
        topics_led=len(led),
        topics=None if wanted == "no" else _topic_rows(led, wanted),
        zookeeper=CoordinatorView(
            contact=view.coordinator.contact.value,
            session=f"{session:#x}" if session else None,
        ),
        storage=StorageView(
            calls=storage.calls,
            errors=storage.errors,
            last_success=_moment(storage.last_success_ms),
            last_failure=_moment(storage.last_failure_ms),
            last_error=storage.last_error,
        ),
        uptime_s=round(view.clock.monotonic() - view.started_at, 3),
        clock_skew_ms=view.leaders.claims.clocks.skew_ms,
        now_ms=view.clock.now_ms(),
    )


def _topic_rows(led: Mapping[TopicId, int], wanted: str) -> list[LedTopic]:
    if wanted == "yes":
        topics = nsmallest(TOPICS_NAMED_MAX, led)
    else:
        topics = [topic for topic in (TopicId(*wanted.split("/")),) if topic in led]
    return [
        LedTopic(topic=f"{topic.namespace}/{topic.topic}", epoch=led[topic]) for topic in topics
    ]


async def _ask_report(info: NodeInfo, ask: Ask, seconds: float, wanted: str = "no") -> NodeReport:
    """Ask a node for its view. An answer must name that node: another one may listen at its URL by now."""
    path = OWN_PATH if wanted == "no" else f"{OWN_PATH}?topics={wanted}"
    try:
        async with asyncio.timeout(seconds):
            answer = orjson.loads(await ask(info.url, path, seconds))
    except TimeoutError:
        return NodeReport(None, f"no answer within {seconds:g} s")
    except BrokerError as error:
        return NodeReport(None, error.message)
    except (OSError, ValueError) as error:
        return NodeReport(None, str(error) or type(error).__name__)
    told = answer.get("node") if isinstance(answer, dict) else None
    if told != info.instance:
        return NodeReport(None, f"the answer came from node {told}")
    return NodeReport(answer)


async def _placement(view: ClusterView, patience_s: float) -> Placement | BrokerError:
    """Return pins and drained nodes, or the error: the status is still useful without them."""
    try:
        async with asyncio.timeout(patience_s):
            return await read_placement(view.records)
    except TimeoutError:
        return BrokerError(f"The records were not read within {patience_s:g} s.")
    except BrokerError as error:
        return error


def _status(
    view: ClusterView,
    nodes: Sequence[NodeInfo],
    asked: Sequence[NodeReport],
    placement: Placement | BrokerError,
) -> ClusterStatus:
    known = placement if isinstance(placement, Placement) else None
    return ClusterStatus(
        asked=view.me.instance,
        contact=view.coordinator.contact.value,
        nodes=[_row(info, told, known) for info, told in zip(nodes, asked, strict=True)],
        drained=None if known is None else sorted(known.drained),
        pins=None if known is None else len(known.pins),
        problem=_problem(placement),
    )


def _problem(placement: Placement | BrokerError) -> str | None:
    if isinstance(placement, BrokerError):
        return placement.message
    return "; ".join(placement.problems) or None


def _row(info: NodeInfo, told: NodeReport, placement: Placement | None) -> Member:
    drained = None if placement is None else info.instance in placement.drained
    if told.view is None:
        state = "silent"
    elif info.draining or told.view.get("draining"):
        state = "stopping"
    else:
        state = "drained" if drained else "serving"
    return Member(
        node=info.instance,
        url=info.url,
        version=info.version,
        protocol=info.protocol,
        state=state,
        drained=drained,
        problem=told.problem,
        view=told.view,
    )


def _wanted_topics(request: Request) -> str:
    """Return which topics the request wants named. Raises BadRequest."""
    wanted = request.query.get("topics", "no")
    if wanted not in {"no", "yes"}:
        namespace, slash, topic = wanted.partition("/")
        if not slash:
            raise BadRequest(f"topics must be no, yes, or a topic NS/TOPIC, not {wanted!r:.80}.")
        check_topic(check_namespace(namespace), topic)
    return wanted


def _patience_s(view: ClusterView, request: Request) -> float:
    """Return how long other nodes may take: at most the view's bound, and half of the request's remaining time."""
    if request.deadline is None:
        return view.answer_s_max
    left_s = request.deadline - view.clock.monotonic()
    return max(0.0, min(view.answer_s_max, left_s / 2))


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else rfc3339(time_ms)


# The other nodes as witnesses: two clocks differ at least by the distance of the other node's time from the interval
# between the request and the answer, as with a write to storage.


async def clocks_of(others: Iterable[NodeInfo], ask: Ask, clock: Clock) -> Sequence[Written]:
    """Return the clocks of the nodes that answer. This asks at most CLOCKS_MAX nodes, all at once."""
    asked = [_clock_of(node, ask, clock) for node in islice(others, CLOCKS_MAX)]
    return [answer for answer in await asyncio.gather(*asked) if answer is not None]


async def _clock_of(node: NodeInfo, ask: Ask, clock: Clock) -> Written | None:
    sent = read_clock(clock)
    view = (await _ask_report(node, ask, CLOCK_S_MAX)).view
    now_ms = None if view is None else view.get("now_ms")
    return Written(sent, now_ms, clock.now_ms()) if isinstance(now_ms, int) else None

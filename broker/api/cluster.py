"""The views of a cluster, of one node or of all, and the changes of the places where topics are led.

A node makes its own view from memory: it asks no storage, no coordinator and no other node. For the view of all
nodes, it asks all members for their own views in parallel, within a bounded time. A node that does not answer is
shown as silent. So the view works also while parts of the cluster fail, when operators need it most.

Draining a node and pinning a topic change a record and tell all nodes to read it. The nodes then hand the topics over by
themselves. So the answer states the goal, which is not reached yet; ``/v1/cluster`` shows the progress. Every change may be
repeated. Its answer says whether anything changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple

import orjson

from broker.api import asked
from broker.clock import Clock
from broker.coordination import placement as changes
from broker.coordination.cluster_tenure import ClusterTenure
from broker.coordination.placement import Placement, read_placement
from broker.coordination.ports import INSTANCES_MAX, Coordinator, Membership, NodeInfo
from broker.errors import BadRequest, BrokerError, NotFound, Unavailable
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
    Drained,
    LedTopic,
    Member,
    Pin,
    Pinned,
    Pins,
    StorageView,
)
from broker.operations.sent import PinSent
from broker.routing.peers import Peers
from broker.storage.call_health import CallHealth
from broker.storage.records import RecordStore
from broker.topics.leaders import Leaders
from broker.topics.registry import TopicRegistry, not_found
from broker.topics.reserved import is_reserved

OWN_PATH: Final = "/v1/cluster/node"
ANSWER_S_MAX: Final = 2.0

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
        signed: returns the headers for a GET of this node from the node at a URL, within so many seconds.
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
    signed: Callable[[str, str, float], Mapping[str, str]] = lambda *_: {"Accept": JSON}
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
            ask = _Get(path, headers=self.signed(url, path, seconds))
            reply = await self.peers.exchange(url, ask, seconds)
        except (NotSent, NoAnswer) as error:
            raise Unavailable(f"It gave no answer: {error}") from error
        if reply.status != 200:
            raise Unavailable(f"It answered with status {reply.status}.")
        return reply.body


class NodeReport(NamedTuple):
    """The result of asking one node: its view of itself, or the problem."""

    view: ClusterNode | None
    problem: str | None = None


NODE_BYTES_MAX: Final = 4 * 1024


class ClusterHandlers:
    """The handlers of the views, and of the changes of the places where topics are led."""

    def __init__(self, view: ClusterView, registry: TopicRegistry) -> None:
        """Keep the node's view of the cluster, and the registry of topics."""
        self._view = view
        self._registry = registry

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
            return await ask_report(info, view.ask, patience_s, wanted)

        asking = asyncio.gather(*map(report, nodes))
        (known, problem), reports = await asyncio.gather(_placement(view, patience_s), asking)
        status = ClusterStatus(
            asked=view.me.instance,
            contact=view.coordinator.contact.value,
            nodes=[_row(info, told, known) for info, told in zip(nodes, reports, strict=True)],
            drained=None if known is None else sorted(known.drained),
            pins=None if known is None else len(known.pins),
            problem=problem,
        )
        return json_reply(status)

    async def drain(self, request: Request) -> Answer:
        """Drain a node: it leads no topic, also after a restart. It still takes requests and forwards them."""
        view = self._view
        node = live_node(view, request.names.node)
        said = await read_placement(view.records)
        if not any(info.instance != node.instance for info in _leading(view, said)):
            raise BadRequest(
                f"Node {node.instance} is the last node that leads topics. If it were drained, no node would lead them. "
                "Start or undrain another node first."
            )
        changed = await _change_and_hint(view, changes.drain(view.records, node.instance))
        return json_reply(Drained(node=node.instance, url=node.url, drained=True, changed=changed))

    async def undrain(self, request: Request) -> Answer:
        """Undrain a node: it may lead again. The node need not live now."""
        view = self._view
        text = request.names.node
        said = await read_placement(view.records)
        if _is_instance(text) and int(text) in said.drained:
            instance = int(text)
            info = view.nodes.get(instance)
            url = None if info is None else info.url
        else:
            node = live_node(view, text)
            instance, url = node.instance, node.url
        changed = await _change_and_hint(view, changes.undrain(view.records, instance))
        return json_reply(Drained(node=instance, url=url, drained=False, changed=changed))

    async def pins(self, _: Request) -> Answer:
        """Answer all pins."""
        view = self._view
        said = await read_placement(view.records)
        live = view.nodes
        pins = [
            Pin(topic=_name(topic), node=node, lives=node in live)
            for topic, node in sorted(said.pins.items())
        ]
        return json_reply(Pins(pins=pins))

    async def pin(self, request: Request) -> Answer:
        """Let one node lead a topic, for as long as it lives."""
        view = self._view
        sent: PinSent = asked.read_small(request.body, PinSent, bytes_max=NODE_BYTES_MAX)
        node = live_node(view, str(sent["node"]))
        said = await read_placement(view.records)
        if all(info.instance != node.instance for info in _leading(view, said)):
            why = "is drained" if node.instance in said.drained else "is stopping"
            raise BadRequest(f"Node {node.instance} {why}, and leads no topic. Undrain it first.")
        if not await self._exists(request.topic):
            raise not_found(request.topic)
        changed = await _change_and_hint(
            view, changes.pin(view.records, request.topic, node.instance)
        )
        return json_reply(_pinned(request.topic, node, changed=changed))

    async def unpin(self, request: Request) -> Answer:
        """Remove a topic's pin: any node may lead it again. This also removes the pin of a deleted topic."""
        view = self._view
        changed = await _change_and_hint(view, changes.unpin(view.records, request.topic))
        if not changed and not await self._exists(request.topic):
            raise not_found(request.topic)
        return json_reply(_pinned(request.topic, None, changed=changed))

    async def _exists(self, topic: TopicId) -> bool:
        """Return whether the topic exists. Read its record, since this node's memory of it may be stale."""
        record = await self._registry.read(topic)
        return record is not None and not record.deleted


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
    return [LedTopic(topic=_name(topic), epoch=led[topic]) for topic in topics]


async def ask_report(info: NodeInfo, ask: Ask, seconds: float, wanted: str = "no") -> NodeReport:
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


async def _placement(view: ClusterView, patience_s: float) -> tuple[Placement | None, str | None]:
    """Return pins and drained nodes, and the problem with them: the status is still useful without them."""
    try:
        async with asyncio.timeout(patience_s):
            known = await read_placement(view.records)
    except TimeoutError:
        return None, f"The records were not read within {patience_s:g} s."
    except BrokerError as error:
        return None, error.message
    return known, "; ".join(known.problems) or None


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


def live_node(view: ClusterView, text: str) -> NodeInfo:
    """Return the live node with this instance id or URL. Raises NotFound, which lists the live nodes."""
    nodes = view.nodes
    found = nodes.get(int(text)) if _is_instance(text) else _at(nodes.values(), text)
    if found is None:
        there_are = ", ".join(f"{info.instance} at {info.url}" for _, info in sorted(nodes.items()))
        raise NotFound(f"There is no live node {text!r:.200}. The live nodes: {there_are}.")
    return found


def _is_instance(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(INSTANCES_MAX))


def _at(nodes: Iterable[NodeInfo], url: str) -> NodeInfo | None:
    wanted = url.rstrip("/").lower()
    return next((info for info in nodes if info.url.rstrip("/").lower() == wanted), None)


def _leading(view: ClusterView, said: Placement) -> list[NodeInfo]:
    """Return the live nodes that may lead."""
    return [
        info
        for info in view.nodes.values()
        if not info.draining and info.instance not in said.drained
    ]


async def _change_and_hint(view: ClusterView, change: Awaitable[bool]) -> bool:
    """Make a change and tell all nodes, also if the outcome of the change is unknown."""
    try:
        return await change
    finally:
        await view.coordinator.hint(changes.HINT)


def _name(topic: TopicId) -> str:
    return f"{topic.namespace}/{topic.topic}"


def _pinned(topic: TopicId, node: NodeInfo | None, *, changed: bool) -> Pinned:
    return Pinned(
        topic=_name(topic),
        node=None if node is None else node.instance,
        url=None if node is None else node.url,
        changed=changed,
    )

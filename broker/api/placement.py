"""Handlers for operators that change where topics are led: drain and undrain nodes, pin and unpin topics.

A handler changes a record and tells all nodes to read it. The nodes then hand the topics over by themselves. So the
answer states the goal, which is not reached yet; ``/v1/cluster`` shows the progress. Every change may be repeated.
Its answer says whether anything changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from broker.api import asked
from broker.api.cluster import ClusterView
from broker.coordination import placement
from broker.coordination.placement import Placement, read_placement
from broker.coordination.ports import INSTANCES_MAX, NodeInfo
from broker.errors import BadRequest, NotFound
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import TopicId
from broker.operations.replies import Drained, Pin, Pinned, Pins
from broker.operations.sent import PinSent
from broker.topics.registry import TopicRegistry, not_found

NODE_BYTES_MAX: Final = 4 * 1024


class Placing:
    """The handlers that change where topics are led."""

    def __init__(self, view: ClusterView, registry: TopicRegistry) -> None:
        """Keep the node's view of the cluster, and the registry of topics."""
        self._view = view
        self._registry = registry

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
        changed = await _change_and_hint(view, placement.drain(view.records, node.instance))
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
        changed = await _change_and_hint(view, placement.undrain(view.records, instance))
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
            view, placement.pin(view.records, request.topic, node.instance)
        )
        return json_reply(_pinned(request.topic, node, changed=changed))

    async def unpin(self, request: Request) -> Answer:
        """Remove a topic's pin: any node may lead it again. This also removes the pin of a deleted topic."""
        view = self._view
        changed = await _change_and_hint(view, placement.unpin(view.records, request.topic))
        if not changed and not await self._exists(request.topic):
            raise not_found(request.topic)
        return json_reply(_pinned(request.topic, None, changed=changed))

    async def _exists(self, topic: TopicId) -> bool:
        """Return whether the topic exists. Read its record, since this node's memory of it may be stale."""
        record = await self._registry.read(topic)
        return record is not None and not record.deleted


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
        await view.coordinator.hint(placement.HINT)


def _name(topic: TopicId) -> str:
    return f"{topic.namespace}/{topic.topic}"


def _pinned(topic: TopicId, node: NodeInfo | None, *, changed: bool) -> Pinned:
    return Pinned(
        topic=_name(topic),
        node=None if node is None else node.instance,
        url=None if node is None else node.url,
        changed=changed,
    )

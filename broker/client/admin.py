"""Requests about a cluster, for ``Client.ask``: its status, leaders, drain and undrain, pins.

Each function returns a ``ClientRequest``. The broker answers with a JSON object, which its OpenAPI document
describes. Every change is repeatable: sending it again has no further effect.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from broker.client import answer_shapes
from broker.client.protocol import ClientRequest, read
from broker.model import TopicId
from broker.operations.media_types import JSON

_CLUSTER = "/v1/cluster"


def _read(path: str, answer: object, topic: TopicId | None = None) -> ClientRequest:
    return read("GET", path, {"Accept": JSON}, topic=topic)._replace(answer=answer)


def _write(
    method: str, path: str, answer: object, body: bytes = b"", topic: TopicId | None = None
) -> ClientRequest:
    headers = {"Accept": JSON, **({"Content-Type": JSON} if body else {})}
    return ClientRequest(method, path, headers, body, topic, repeatable=True, answer=answer)


def status(*, with_topics: bool = False, topic: TopicId | None = None) -> ClientRequest:
    """Ask every node for its status.

    With ``with_topics`` the answer also lists the topics that each node leads. If there are very many, it lists
    the first ones by name. With ``topic`` the answer says of this topic alone which node leads it.
    """
    if topic is not None:
        return _read(f"{_CLUSTER}?topics={topic.namespace}/{topic.topic}", answer_shapes.CLUSTER)
    return _read(f"{_CLUSTER}?topics=yes" if with_topics else _CLUSTER, answer_shapes.CLUSTER)


def leader(topic: TopicId) -> ClientRequest:
    """Ask which node leads a topic."""
    path = f"/v1/namespaces/{topic.namespace}/topics/{topic.topic}/leader"
    return _read(path, answer_shapes.LEADER, topic)


def drain(node: str) -> ClientRequest:
    """Make a node hand over all its topics. ``node`` is an instance id or a URL, here and below."""
    return _write("POST", f"{_CLUSTER}/nodes/{quote(node, safe='')}/drain", answer_shapes.DRAINED)


def undrain(node: str) -> ClientRequest:
    """Let a node lead again."""
    return _write("POST", f"{_CLUSTER}/nodes/{quote(node, safe='')}/undrain", answer_shapes.DRAINED)


def pins() -> ClientRequest:
    """Ask for all pins."""
    return _read(f"{_CLUSTER}/pins", answer_shapes.PINS)


def pin(topic: TopicId, node: str) -> ClientRequest:
    """Let one node lead a topic as long as that node lives."""
    body = json.dumps({"node": node}).encode()
    return _write("PUT", _pin(topic), answer_shapes.PINNED, body, topic)


def unpin(topic: TopicId) -> ClientRequest:
    """Let any node lead a topic again."""
    return _write("DELETE", _pin(topic), answer_shapes.PINNED, topic=topic)


def _pin(topic: TopicId) -> str:
    return f"{_CLUSTER}/pins/{topic.namespace}/{topic.topic}"

"""Requests about a cluster, for ``Client.ask``: its status, leaders, drain and undrain, pins.

Each function returns a ``ClientRequest``. The broker answers with a JSON object, which its OpenAPI document
describes. Every change is repeatable: sending it again has no further effect.
"""

from __future__ import annotations

from broker.client.client_request import ClientRequest, request_for
from broker.model import TopicId


def status(*, with_topics: bool = False, topic: TopicId | None = None) -> ClientRequest:
    """Ask every node for its status.

    With ``with_topics`` the answer also lists the topics that each node leads. If there are very many, it lists
    the first ones by name. With ``topic`` the answer says of this topic alone which node leads it.
    """
    wanted = "yes" if with_topics else None
    if topic is not None:
        wanted = f"{topic.namespace}/{topic.topic}"
    return request_for("cluster", query={"topics": wanted})


def leader(topic: TopicId) -> ClientRequest:
    """Ask which node leads a topic."""
    return request_for("leader", topic)


def drain(node: str) -> ClientRequest:
    """Make a node hand over all its topics. ``node`` is an instance id or a URL, here and below."""
    return request_for("drain", node=node)


def undrain(node: str) -> ClientRequest:
    """Let a node lead again."""
    return request_for("undrain", node=node)


def create_token(principal: str, expires_s: int | None = None) -> ClientRequest:
    """Make a token for a principal. Only this answer shows it. ``expires_s``: its life; None: it has no end."""
    sent: dict[str, object] = {"principal": principal}
    if expires_s is not None:
        sent["expires_s"] = expires_s
    return request_for("create_token", sent=sent)


def tokens() -> ClientRequest:
    """Ask for all tokens, without their secrets."""
    return request_for("tokens")


def revoke_token(identifier: str) -> ClientRequest:
    """Revoke the token with an id."""
    return request_for("revoke_token", token=identifier)


def grant(who: str, what: str, pattern: str = "*") -> ClientRequest:
    """Grant a role or an action. ``who`` is a principal, or ``group:`` and the name of a group."""
    return request_for("grant", sent={"who": who, "what": what, "pattern": pattern})


def grants() -> ClientRequest:
    """Ask for all grants."""
    return request_for("grants")


def revoke_grant(who: str, what: str, pattern: str = "*", *, force: bool = False) -> ClientRequest:
    """Revoke a grant. ``force``: also the last one of an administrator."""
    query = {"who": who, "what": what, "pattern": pattern, "force": "true" if force else None}
    return request_for("revoke_grant", query=query)


def decide(who: str, action: str, topic: str | None = None) -> ClientRequest:
    """Ask whether a principal may do an action, in a topic (``NAMESPACE/TOPIC``) or about none."""
    return request_for("decide", query={"who": who, "action": action, "topic": topic})


def pins() -> ClientRequest:
    """Ask for all pins."""
    return request_for("pins")


def pin(topic: TopicId, node: str) -> ClientRequest:
    """Let one node lead a topic as long as that node lives."""
    return request_for("pin", topic, sent={"node": node})


def unpin(topic: TopicId) -> ClientRequest:
    """Let any node lead a topic again."""
    return request_for("unpin", topic)

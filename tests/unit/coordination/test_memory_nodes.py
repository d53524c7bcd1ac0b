"""The state of the servers. test_memory.py tests the view of the clients."""

from __future__ import annotations

from contextvars import Context

import pytest

from broker.coordination.memory_nodes import TreeNodes, Watched
from broker.coordination.tree import NodeExists, NoNode


class Client:
    context = Context()


def test_an_ephemeral_node_ends_with_its_session_and_has_no_children() -> None:
    nodes = TreeNodes(Watched.fire)
    session = nodes.begin_session()
    nodes.create("/a", b"", session, sequential=False)
    with pytest.raises(NoNode):
        nodes.create("/a/b", b"", 0, sequential=False)
    nodes.end_session(session)
    assert nodes.get("/a") is None
    assert session not in nodes.sessions


def test_the_number_of_a_removed_sequential_node_is_not_used_again() -> None:
    nodes = TreeNodes(Watched.fire)
    first = nodes.create("/n-", b"", 0, sequential=True)
    nodes.delete(first)
    assert [first, nodes.create("/n-", b"", 0, sequential=True)] == [
        "/n-0000000000",
        "/n-0000000001",
    ]
    with pytest.raises(NodeExists):
        nodes.create("/n-0000000001", b"", 0, sequential=False)


def test_a_watch_is_called_once_and_a_forgotten_watch_never() -> None:
    called: list[str] = []
    nodes, one, other = TreeNodes(Watched.fire), Client(), Client()
    nodes.create("/a", b"", 0, sequential=False)
    nodes.watch("data", "/a", Watched(one, lambda: called.append("one")))
    nodes.watch("data", "/a", Watched(other, lambda: called.append("other")))
    assert len(nodes.forget_watches(other)) == 1
    nodes.put("/a", b"1")
    nodes.put("/a", b"2")
    assert called == ["one"]
    assert nodes.at("/a").stat.version == 2

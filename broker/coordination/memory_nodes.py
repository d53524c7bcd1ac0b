"""Keep the servers' state of coordination in memory: nodes, sessions and watches. Each method is one atomic step.

memory.py decides when a client sees a change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from broker.coordination.tree import NodeExists, NoNode, Stat, Watch


class Watcher(Protocol):
    """Sets watches. Its watches are called in its ``context``."""

    context: Context


class TreeNode:
    """One node of the tree."""

    __slots__ = ("children", "data", "next_number", "owner", "version")

    def __init__(self, data: bytes, owner: int) -> None:
        """Begin a node; ``owner`` is a session, or 0."""
        self.data = data
        self.owner = owner
        self.version = 0
        self.next_number = 0
        self.children: dict[str, None] = {}

    @property
    def stat(self) -> Stat:
        """Return the node's stat."""
        return Stat(self.owner, self.version)


class Watched:
    """A watch of one tree, called at most once."""

    __slots__ = ("_call", "tree")

    def __init__(self, tree: Watcher, call: Watch) -> None:
        """Keep the function to call."""
        self.tree = tree
        self._call: Watch | None = call

    def fire(self) -> None:
        """Call the watch's function, but only the first time."""
        call, self._call = self._call, None
        if call is not None:
            call()


class TreeNodes:
    """The servers' state."""

    def __init__(self, notify: Callable[[Watched], None]) -> None:
        """Begin with only the root; ``notify`` gets each watch that fires."""
        self._notify = notify
        self._last_session = 0
        self.sessions: set[int] = set()
        self._nodes = {"/": TreeNode(b"", 0)}
        self._watches: defaultdict[tuple[str, str], list[Watched]] = defaultdict(list)

    def begin_session(self) -> int:
        """Return a new session."""
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def end_session(self, session: int) -> None:
        """End a session, and remove its nodes."""
        self.sessions.discard(session)
        owned = [path for path, node in self._nodes.items() if node.owner == session]
        for path in owned:
            self.delete(path)

    def wipe(self) -> None:
        """Forget everything."""
        for session in sorted(self.sessions):
            self.end_session(session)
        self._nodes = {"/": TreeNode(b"", 0)}

    def forget_watches(self, tree: Watcher) -> list[Watched]:
        """Remove and return the watches of one tree."""
        taken = [w for watched in self._watches.values() for w in watched if w.tree is tree]
        for key, watched in list(self._watches.items()):
            self._watches[key] = [watch for watch in watched if watch.tree is not tree]
        return taken

    def watch(self, kind: str, path: str, watched: Watched | None) -> None:
        """Watch the ``data`` or the ``children`` of a node."""
        if watched is not None:
            self._watches[kind, path].append(watched)

    def _fire(self, kind: str, path: str) -> None:
        for watched in self._watches.pop((kind, path), ()):
            self._notify(watched)

    def create(self, path: str, data: bytes, owner: int, *, sequential: bool) -> str:
        """Make a node and return its path. Raises NoNode, NodeExists."""
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._nodes.get(parent_path)
        if parent is None or parent.owner:
            raise NoNode(parent_path)
        if sequential:
            path = f"{path}{parent.next_number:010d}"
        if path in self._nodes:
            raise NodeExists(path)
        parent.next_number += 1
        parent.children[path.rpartition("/")[2]] = None
        self._nodes[path] = TreeNode(data, owner)
        self._fire("children", parent_path)
        return path

    def delete(self, path: str) -> None:
        """Remove a node, if it exists."""
        if self._nodes.pop(path, None) is None:
            return
        parent_path, _, name = path.rpartition("/")
        del self._nodes[parent_path or "/"].children[name]
        self._fire("data", path)
        self._fire("children", path)
        self._fire("children", parent_path or "/")

    def get(self, path: str) -> TreeNode | None:
        """Return a node, or None."""
        return self._nodes.get(path)

    def at(self, path: str) -> TreeNode:
        """Return a node. Raises NoNode."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def put(self, path: str, data: bytes) -> None:
        """Set a node's data. Raises NoNode."""
        node = self.at(path)
        node.data = data
        node.version += 1
        self._fire("data", path)

"""Keep membership on a tree of nodes: each instance id has one ephemeral node, and every member reads all of them.

::

    {root}/nodes/000   {"instance": 0, "incarnation": "9f2c…", "url": "http://a:8080", …}
                 001   …

The tree node belongs to a session, the instance id to an incarnation. After a lost session, the same incarnation
announces itself again under a new one. If a member finds that another incarnation has its number, it is not a member
any more, and reports that.

A member that lost its session may not be the only one. If ZooKeeper lost its data, all tree nodes are gone, and all
members return after a short time. Until then a member keeps counting the members that it knew. So the topics of a
whole cluster do not move because ZooKeeper was wiped, or stood still.

Each member has one task that reads, whenever a watch or new contact shows that something may have changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import NamedTuple

from broker.coordination.ports import INSTANCES_MAX, InstanceTaken, Members, NodeInfo
from broker.coordination.tree import Changed, NodeExists, NoNode, Reach, Stat, Unanswered
from broker.errors import Unavailable

SETTLE_S = 2.0
"""The time that a member under a new session waits for others to return. A node tries to connect twice a second."""
SAME_URL = (
    "the same URL (another process was started there, or elsewhere under that advertised_url)"
)
"""How a node describes the address of a process that has replaced it."""


class MemberNode(NamedTuple):
    """A member's tree node, as this node has read it."""

    info: NodeInfo
    stat: Stat


def name_of(instance: int) -> str:
    """Return the name of an instance's node: ``007``."""
    return f"{instance:03d}"


def encode(info: NodeInfo) -> bytes:
    """Encode the information that a node gives to the others."""
    return json.dumps(info._asdict(), separators=(",", ":")).encode()


def decode(name: str, data: bytes) -> NodeInfo | None:
    """Decode a node's information; None if it is unreadable or belongs under another name.

    Fields of a later release are ignored.
    """
    try:
        fields = json.loads(data)
        info = NodeInfo(**{field: fields[field] for field in NodeInfo._fields if field in fields})
        sound = 0 <= info.instance < INSTANCES_MAX and name_of(info.instance) == name
        texts = [fields["url"], fields["incarnation"]]
        sound = sound and all(isinstance(each, str) for each in texts)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return info if sound else None


async def live_nodes(reach: Reach) -> dict[int, NodeInfo]:
    """Read and return the live nodes. Raises Unavailable."""
    folder = f"{reach.root}/nodes"
    try:
        names = await reach.tree.children(folder)
        found = await asyncio.gather(*(reach.tree.get(f"{folder}/{name}") for name in names))
    except NoNode:
        return {}
    except Unanswered as error:
        raise Unavailable("The live nodes can't be read now.") from error
    read = (
        decode(name, node[0]) for name, node in zip(names, found, strict=True) if node is not None
    )
    return {info.instance: info for info in read if info is not None}


class TreeMembership:
    """One incarnation among the others, under the present session."""

    def __init__(self, reach: Reach, me: NodeInfo) -> None:
        """Prepare to join as ``me``; ``enter`` announces it."""
        self._reach = reach
        self._me = me
        self._folder = f"{reach.root}/nodes"
        self._path = f"{self._folder}/{name_of(me.instance)}"
        self._members = Members(0, {})
        self._published: list[tuple[NodeInfo, int]] = []
        self.session = 0
        """The session under which this node is a member, as read last; 0 if it is not a member."""
        self._listeners: list[Callable[[], None]] = []
        self._known: dict[str, MemberNode | None] = {}
        self._outdated: set[str] = set()
        """Known nodes that may have changed since. Until they are read again, their members count as before."""
        self._stale = asyncio.Event()
        self._settled_at = 0.0
        self._left = False
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def me(self) -> NodeInfo:
        """Return this node's information, as announced last."""
        return self._me

    @property
    def members(self) -> Members:
        """Return the live nodes, as read last."""
        return self._members

    @property
    def over(self) -> bool:
        """Return whether this node left, or lost its id to another incarnation."""
        return self._left or self.stopped.done()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever ``members`` has changed."""
        self._listeners.append(changed)

    def look_again(self) -> None:
        """Read everything again: contact was lost and is back, or there is a new session."""
        self._outdated.update(self._known)
        self._stale.set()
        if self._reach.tree.session != self.session:
            self._settled_at = self._reach.clock.monotonic() + SETTLE_S
            self._reach.begin(self._settle())

    async def _settle(self) -> None:
        """After ``SETTLE_S``, count the members that have not returned as gone."""
        clock = self._reach.clock
        # A sleep may end a little early. A read that comes too early would be the last one.
        while (left_s := self._settled_at - clock.monotonic()) > 0:
            await clock.sleep(left_s)
        self._stale.set()

    async def enter(self) -> None:
        """Become a member. Raises InstanceTaken, Unanswered."""
        while not self.session:
            if await self._announce_first():
                await self._read()
        self._reach.begin(self._follow())

    async def announce(self, *, draining: bool) -> None:
        """Tell the others whether this node is draining; without contact, tell them once it is back."""
        self._me = self._me._replace(draining=draining)
        try:
            if await self._has_node():
                await self._reach.tree.put(self._path, encode(self._me))
                return
        except (NoNode, Unanswered):
            pass
        self.look_again()

    async def _has_node(self) -> bool:
        """Return whether the tree node belongs to this incarnation, which must not change another one's."""
        found = await self._reach.tree.get(self._path)
        holder = None if found is None else decode(name_of(self._me.instance), found[0])
        return holder is not None and self._is_me(holder)

    async def leave(self) -> None:
        """Stop being a member."""
        self._left = True
        self._stale.set()
        await self._withdraw()

    async def _withdraw(self) -> None:
        try:
            if await self._has_node():
                await self._reach.tree.delete(self._path)
        except Unanswered:
            self._reach.begin(self._withdraw_later())

    async def _withdraw_later(self) -> None:
        await self._reach.pause()
        await self._withdraw()

    # Becoming a member.

    async def _announce_first(self) -> bool:
        """Make or take over the own tree node. Return False if the caller has to try again."""
        tree = self._reach.tree
        try:
            await tree.create(self._path, encode(self._me), ephemeral=True)
        except NoNode:
            await self._reach.make_folder(self._folder)
            return False
        except NodeExists:
            found = await tree.get(self._path)
            return found is not None and await self._take_over(*found)
        return True

    async def _take_over(self, data: bytes, stat: Stat) -> bool:
        """Replace an earlier incarnation of this node. Raises InstanceTaken if it is another node."""
        holder = decode(name_of(self._me.instance), data)
        if holder is not None and holder.url != self._me.url:
            raise InstanceTaken(holder)
        if holder == self._me and stat.owner == self._reach.tree.session:
            return True
        return await self._replace(stat)

    async def _replace(self, stat: Stat) -> bool:
        try:
            await self._reach.tree.replace(self._path, stat.version, encode(self._me))
        except (Changed, NoNode, NodeExists):
            return False
        return True

    # Following the others, and the own tree node.

    async def _follow(self) -> None:
        while not self.over:
            await self._stale.wait()
            await self._reach.contact()
            self._stale.clear()
            try:
                await self._read()
                await self._check_own_node()
            except NoNode:
                await self._make_folder_again()
            except Unanswered:
                self._stale.set()
                await self._reach.pause()

    async def _make_folder_again(self) -> None:
        """Make the folder again: the coordinator lost its data, and all members' tree nodes."""
        self.look_again()
        try:
            await self._reach.make_folder(self._folder)
        except Unanswered:
            await self._reach.pause()

    async def _read(self) -> None:
        names = await self._reach.tree.children(self._folder, self._stale.set)
        for name in self._known.keys() - set(names):
            del self._known[name]
        self._outdated &= self._known.keys()
        read_again = [name for name in names if name not in self._known or name in self._outdated]
        await asyncio.gather(*map(self._read_one, read_again))
        self._publish()

    async def _read_one(self, name: str) -> None:
        moved = asyncio.Event()

        def note() -> None:
            moved.set()
            self._outdated.add(name)
            self._stale.set()

        found = await self._reach.tree.get(f"{self._folder}/{name}", note)
        if found is None:
            self._known.pop(name, None)
            return
        info = decode(name, found[0])
        self._known[name] = None if info is None else MemberNode(info, found[1])
        # The watch may be called before this code gets the answer to its read.
        if not moved.is_set():
            self._outdated.discard(name)

    def _publish(self) -> None:
        seen = {
            one.info.instance: (one.info, one.stat.owner) for one in self._known.values() if one
        }
        if self._reach.clock.monotonic() < self._settled_at:
            seen = {info.instance: (info, owner) for info, owner in self._published} | seen
        published = sorted(seen.values())
        if published == self._published:
            return
        self._published = published
        self.session = next((owner for info, owner in published if self._is_me(info)), 0)
        nodes = {info.instance: info for info, _ in published}
        self._members = Members(self._members.version + 1, nodes)
        for changed in self._listeners:
            changed()

    async def _check_own_node(self) -> None:
        """Make sure that the own tree node exists, belongs to this incarnation, and has the right content."""
        name = name_of(self._me.instance)
        if self.over or name in self._outdated:
            return
        seen = self._known.get(name)
        if seen is None:
            await self._make_own_node()
        elif not self._is_me(seen.info):
            self._stop(seen.info)
        elif seen.info != self._me:
            await self._reach.tree.put(self._path, encode(self._me))

    async def _make_own_node(self) -> None:
        try:
            await self._reach.tree.create(self._path, encode(self._me), ephemeral=True)
        except NodeExists:  # It was made since it was read, or it can't be decoded.
            self._stale.set()
            await self._reach.pause()

    def _is_me(self, info: NodeInfo) -> bool:
        return info.incarnation == self._me.incarnation

    def _stop(self, other: NodeInfo) -> None:
        where = other.url if other.url != self._me.url else SAME_URL
        reason = f"Instance id {self._me.instance} is held by another incarnation, at {where}."
        if not self.stopped.done():
            self.stopped.set_result(reason)

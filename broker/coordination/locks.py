"""Lock on a tree of nodes: the attempt with the lowest number holds the lock, the others wait in line.

Each attempt makes one ephemeral sequential node and waits until no lower one is left. It watches only the
node before its own, so that a release wakes one waiter::

    {root}/locks/slot/17/   k3x-41-0000000007   holds
                            m9p-12-0000000009   waits for ...07
                            k3x-44-0000000010   waits for ...09

A lease is the node and the session that owns it. It ends when that session is known to be over, and is never used
again; the next lease is a new node. The answer to the *creation* of the node may be lost. That is harmless: the node's
name begins with a token of the attempt, by which the attempt finds it again, or removes it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from broker.coordination.tree import Created, NoNode, Reach, Unanswered
from broker.errors import NoLeader, Unavailable
from broker.shield import bare

SEQUENCE_DIGITS = 10


def in_line(names: list[str]) -> list[str]:
    """Return the names of sequential nodes in the order of creation."""
    return sorted(names, key=lambda name: name[-SEQUENCE_DIGITS:])


@dataclass(slots=True)
class LockAttempt:
    """One attempt to take a lock: its folder, and the token with which its node's name begins."""

    resource: str
    folder: str
    token: str
    may_have_node: bool = False
    """Whether the tree was asked to make the node."""

    def is_own(self, name: str) -> bool:
        """Return whether this attempt made the node of this name."""
        return name.startswith(self.token)


class TreeLease:
    """A lock held through a node of the tree, which was made under one session."""

    def __init__(self, locks: Locks, attempt: LockAttempt, name: str, session: int) -> None:
        """Keep the acquired lock."""
        self._locks = locks
        self._attempt = attempt
        self._name = name
        self.session = session
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def resource(self) -> str:
        """Return the name of the lock."""
        return self._attempt.resource

    @property
    def valid(self) -> bool:
        """Return whether it was not released, and its session is not known to be over."""
        return not self.lost.done()

    def end(self) -> None:
        """Mark the lease as lost."""
        self._locks.leases.pop(self, None)
        if not self.lost.done():
            self.lost.set_result(None)

    async def verify(self) -> bool:
        """Ask whether this session still holds the lock. If not, mark the lease as lost.

        Raises:
            Unavailable: there is no answer.
        """
        tree = self._locks.reach.tree
        try:
            await tree.sync()
            line = in_line(await tree.children(self._attempt.folder))
            found = await tree.get(f"{self._attempt.folder}/{self._name}")
        except NoNode:
            found, line = None, []
        except Unanswered as error:
            raise Unavailable(f"The lock on '{self.resource}' can't be verified now.") from error
        is_ours = found is not None and found[1].owner == self.session and line[:1] == [self._name]
        if not is_ours:
            self.end()
        return is_ours and self.valid

    async def release(self) -> None:
        """Release the lock; without contact, remove its node once contact is back."""
        self.end()
        try:
            await self._locks.reach.tree.delete(f"{self._attempt.folder}/{self._name}")
        except Unanswered:
            self._locks.forget(self._attempt)
        except asyncio.CancelledError:
            self._locks.forget(self._attempt)
            raise


class Locks:
    """The locks of one session."""

    def __init__(self, reach: Reach, name: str) -> None:
        """Begin every attempt's token with ``name``, which no other session has."""
        self.reach = reach
        self.leases: dict[TreeLease, None] = {}
        self.holder = b""
        """The data of this session's lock nodes. It shows operators which node made them."""
        self._name = name
        self._attempts = 0
        self._making = asyncio.Lock()
        self._made: set[str] = set()

    def end_sessions(self, *, but: int) -> None:
        """End the leases of all sessions but one."""
        self._made.clear()
        for lease in [lease for lease in self.leases if lease.session != but]:
            lease.end()

    async def acquire(self, resource: str, deadline: float) -> TreeLease:
        """Wait for the lock. Raises NoLeader once the deadline (monotonic seconds) has passed."""
        self._attempts += 1
        folder = f"{self.reach.root}/locks/{resource}"
        attempt = LockAttempt(resource, folder, f"{self._name}-{self._attempts}-")
        try:
            async with asyncio.timeout(max(deadline - self.reach.clock.monotonic(), 0.0)):
                return await self._acquire(attempt)
        except TimeoutError as error:
            self.forget(attempt)
            raise NoLeader(f"This node did not get the lock on '{resource}' in time.") from bare(
                error
            )
        except BaseException:
            self.forget(attempt)
            raise

    def forget(self, attempt: LockAttempt) -> None:
        """Remove the node that an attempt made, or may have made.

        An attempt without contact asked for no node. A node makes such attempts all the time, so nothing may be left of
        them to be done when contact is back.
        """
        if attempt.may_have_node:
            self.reach.begin(self.reach.remove(attempt.folder, attempt.is_own))

    async def _acquire(self, attempt: LockAttempt) -> TreeLease:
        while True:
            await self.reach.contact()
            try:
                place = await self._find_or_make_node(attempt)
                name = place.path.rpartition("/")[2]
                if (
                    await self._wait_for_turn(attempt, name)
                    and place.owner == self.reach.tree.session
                ):
                    lease = TreeLease(self, attempt, name, place.owner)
                    self.leases[lease] = None
                    return lease
            except NoNode:
                await self._make_folder(attempt)
            except Unanswered:
                await self.reach.pause()

    async def _make_folder(self, attempt: LockAttempt) -> None:
        kind = attempt.folder.rpartition("/")[0]
        with suppress(Unanswered):  # The caller then finds the folder missing, and makes it again.
            # A node often takes many locks of one kind at once. The first attempt makes their common folder.
            async with self._making:
                if kind not in self._made:
                    await self.reach.make_folder(kind)
                    self._made.add(kind)
            await self.reach.make_folder(attempt.folder)

    async def _find_or_make_node(self, attempt: LockAttempt) -> Created:
        """Return the attempt's node. If it may exist already, look for it first."""
        tree = self.reach.tree
        names = await tree.children(attempt.folder) if attempt.may_have_node else []
        for name in filter(attempt.is_own, names):
            path = f"{attempt.folder}/{name}"
            found = await tree.get(path)
            if found is not None and found[1].owner == tree.session:
                return Created(path, tree.session)
            # A node of an earlier session would block this attempt until that session ends.
            await tree.delete(path)
        path = f"{attempt.folder}/{attempt.token}"
        attempt.may_have_node = True
        return await tree.create(path, self.holder, ephemeral=True, sequential=True)

    async def _wait_for_turn(self, attempt: LockAttempt, name: str) -> bool:
        """Wait until no lower node is left. Return False if the own node is gone."""
        while True:
            line = in_line(await self.reach.tree.children(attempt.folder))
            if name not in line:
                return False
            place = line.index(name)
            if place == 0:
                return True
            moved = asyncio.Event()
            before = f"{attempt.folder}/{line[place - 1]}"
            if await self.reach.tree.get(before, moved.set) is not None:
                await moved.wait()

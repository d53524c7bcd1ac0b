"""Helpers of the coordination contract: its harness, and functions that wait for notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from broker.coordination.ports import Contact, Coordinator, Lease, Membership, NodeInfo
from broker.testing.virtual_time import within

PATIENCE_S = 20.0
"""Longer than any session outlives its node."""


class CoordinatorHarness(Protocol):
    """Opens sessions with one coordinator, and injects its faults."""

    def monotonic(self) -> float:
        """Return the time by the clock of the deadlines."""

    async def node(self) -> Coordinator:
        """Return a new session, in contact."""

    async def expire(self, node: Coordinator) -> None:
        """End a node's session on the servers, now."""

    async def crash(self, node: Coordinator) -> None:
        """Stop a node without closing its session."""

    async def outage(self) -> None:
        """Stop serving. Sessions survive it."""

    async def recover(self) -> None:
        """Serve again."""

    async def wipe(self) -> None:
        """Lose all data and all sessions, and serve again."""

    async def close(self) -> None:
        """Close all sessions."""


class CallRecorder:
    """A callback that records its calls; a test can wait until a condition holds."""

    def __init__(self) -> None:
        """Begin without calls."""
        self.count = 0
        self.arguments: list[object] = []
        self._news = asyncio.Event()

    def __call__(self, *arguments: object) -> None:
        """Record one call."""
        self.count += 1
        self.arguments.extend(arguments)
        self._news.set()

    async def until(self, holds: Callable[[], bool], state: Callable[[], object]) -> None:
        """Wait until ``holds`` is true; evaluate it again after each call."""

        async def wait() -> None:
            while not holds():
                self._news.clear()
                await self._news.wait()

        await within(PATIENCE_S, wait(), lambda: f"{state()}; called {self.count} times")

    async def at_least(self, count: int) -> None:
        """Wait until so many calls were made."""
        await self.until(lambda: self.count >= count, lambda: f"{count} times expected")


def info(instance: int, incarnation: str = "", url: str = "") -> NodeInfo:
    """Return what a node publishes about itself."""
    return NodeInfo(
        instance,
        incarnation or f"incarnation-{instance}",
        url or f"http://node-{instance}:8080",
        version="1",
        protocol=1,
    )


async def sees(member: Membership, *instances: int) -> None:
    """Wait until a member sees exactly these nodes."""
    recorder = CallRecorder()
    member.on_change(recorder)
    await recorder.until(
        lambda: set(member.members.nodes) == set(instances), lambda: member.members.nodes
    )


async def reaches(node: Coordinator, contact: Contact) -> None:
    """Wait until a node has, or has lost, contact."""
    recorder = CallRecorder()
    node.on_contact(recorder)
    await recorder.until(lambda: node.contact is contact, lambda: node.contact)


async def ended(lease: Lease) -> None:
    """Wait until a lease is known to be over."""
    await within(PATIENCE_S, lease.lost, lambda: f"the lease on {lease.resource} is valid")
    assert is_over(lease)


def is_over(lease: Lease) -> bool:
    """Return whether a lease reports that it is over."""
    return not lease.valid and lease.lost.done()


async def listening(node: Coordinator, hint: str) -> CallRecorder:
    """Subscribe to hints, and return once the subscription works."""
    recorder = CallRecorder()
    node.on_hint(hint, recorder)
    await recorder.at_least(1)
    return recorder


async def in_line(node: Coordinator, resource: str, deadline: float) -> asyncio.Task[Lease]:
    """Let a node wait for a held lock, and return once it is queued."""
    waiter = asyncio.create_task(node.acquire(resource, deadline))
    # The servers answer a node's requests in order. After two later answers, the node is queued.
    for _ in range(2):
        await node.nodes()
    assert not waiter.done()
    return waiter

"""The interface between a kill loop and its victim, which is a broker over HTTP or a store alone.

Payloads are named by their labels (``chaos.labels``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Refused(Exception):
    """The call certainly had no effect."""


class UnknownResult(Exception):
    """There is no answer, or it leaves the outcome open: the call may have been done."""


class Done(NamedTuple):
    """An acknowledged write."""

    first: str
    last: str
    epoch: int | None = None
    replayed: bool = False


class TopicContents(NamedTuple):
    """The result of reading a topic: rows of (id, payload, pointer)."""

    rows: list[tuple[str, str | None, int | None]]
    floor: str
    pointer: str


class Driver(Protocol):
    """The victim of a kill loop. Calls raise Refused or UnknownResult."""

    async def start(self) -> None:
        """Start or restart the victim, and wait until it answers."""

    async def kill(self) -> None:
        """Kill the victim at once, and wait until it is dead."""

    async def create(self, topic: str) -> int:
        """Create a topic; return its generation."""

    async def delete(self, topic: str, generation: int) -> None:
        """Delete a topic."""

    async def publish(
        self,
        topic: str,
        generation: int,
        payloads: Sequence[str],
        *,
        pointer: int | None = None,
        key: str | None = None,
    ) -> Done:
        """Publish, with an optional transaction and an optional idempotency key."""

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> None:
        """Roll a publish back."""

    async def store(
        self, topic: str, generation: int, payloads: Sequence[str], number: int
    ) -> Done:
        """Store payloads for a later publish."""

    async def reference(self, topic: str, generation: int, number: int) -> Done:
        """Publish the payloads stored under a number."""

    async def read(self, topic: str, generation: int) -> TopicContents:
        """Read a whole topic, without a snapshot."""

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        """Read the payloads stored under a number."""

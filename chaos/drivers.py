"""What a kill loop drives: one interface for a broker over HTTP and for a store alone.

Payloads travel as labels: short names, each of which stands for its own bytes, so that histories stay
small, payloads have many sizes, and a changed byte is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

SIZES = (1, 1, 30, 30, 100, 100, 256, 256, 256, 300, 300, 1000, 1000, 5000, 5000, 70_000)


class Refused(Exception):
    """Certainly not done."""


class UnknownResult(Exception):
    """No answer, or one that does not say: it may have been done."""


class Done(NamedTuple):
    """An acknowledged write."""

    first: str
    last: str
    epoch: int | None = None
    replayed: bool = False


class TopicContents(NamedTuple):
    """A topic as it was read: rows of (id, payload, pointer)."""

    rows: list[tuple[str, str | None, int | None]]
    floor: str
    pointer: str


class Driver(Protocol):
    """What is killed, and how it is spoken to. Calls raise Refused or Gone."""

    async def start(self) -> None:
        """Start, or start again, and wait until it answers."""

    async def kill(self) -> None:
        """Kill it at once, and wait until it is dead."""

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
        """Publish, perhaps in a transaction, perhaps under an idempotency key."""

    async def rollback(
        self, topic: str, generation: int, pointer: int, first: str, last: str
    ) -> None:
        """Roll a publish back."""

    async def store(
        self, topic: str, generation: int, payloads: Sequence[str], number: int
    ) -> Done:
        """Store payloads for a later publish."""

    async def reference(self, topic: str, generation: int, number: int) -> Done:
        """Publish what was stored under a number."""

    async def read(self, topic: str, generation: int) -> TopicContents:
        """Read a whole topic, without a snapshot."""

    async def payloads(
        self, topic: str, generation: int, number: int
    ) -> list[tuple[str, str | None]]:
        """Read what was stored under a number."""


def expand(label: str) -> bytes:
    """Return the payload that a label stands for; its size and bytes follow from the label."""
    seed = hashlib.sha256(label.encode()).digest()
    size = SIZES[seed[0] % len(SIZES)]
    return label.encode() + b"|" + (seed * (size // len(seed) + 1))[:size]


def collapse(payload: bytes) -> str:
    """Return the label of a payload; one that nobody ever published if a byte differs."""
    label = payload.partition(b"|")[0].decode(errors="replace")
    return label if expand(label) == payload else f"damaged:{payload[:80].hex()}"

"""Inflate gzip in steps. Each step makes a bounded number of bytes, and the caller decides when to take it.

A few bytes can inflate to a thousand times as many. So the caller makes room in the budget before it takes a step, and
takes the steps of large bodies in a thread. zlib lets other threads run while it inflates. Only the copying of one
step holds them up, for about 0.1 ms.

A gzip may have several members, one behind the other. Each member costs about the same, even an empty one, so their
number is bounded, too. The bound is enough for tools that write one member for every 64 KiB.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from broker.errors import BadRequest, BodyTooLarge

GZIP_WINDOW: Final = 31
STEP_BYTES_MAX: Final = 256 * 1024
STEP_MEMBERS_MAX: Final = 16
MEMBERS_MAX: Final = 4_096
_SLICE_BYTES: Final = 64 * 1024
"""How much input zlib gets at once. zlib copies the input that it has not used, so this bounds the copy."""


class Inflater:
    """Inflates one body, fed piece by piece, up to a bound."""

    __slots__ = ("_at", "_bytes_max", "_member", "_piece", "inflated", "members", "read")

    def __init__(self, bytes_max: int) -> None:
        """Start before the first member. ``bytes_max`` bounds the inflated size of all members together."""
        self._bytes_max = bytes_max
        self._member: Any = None
        self._piece = memoryview(b"")
        self._at = 0
        self.members = 0
        self.read = 0
        """The bytes of all pieces, as sent."""
        self.inflated = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece. The last piece must be used up."""
        self._piece, self._at = memoryview(piece), 0
        self.read += len(piece)

    @property
    def has_more(self) -> bool:
        """True if the piece has bytes that no step has used yet."""
        return self._at < len(self._piece)

    @property
    def step_bytes_max(self) -> int:
        """The most bytes that the next step makes: at most one byte past the bound."""
        return min(STEP_BYTES_MAX, self._bytes_max - self.inflated + 1)

    def step(self) -> bytes:
        """Return the next inflated bytes. Raises BadRequest, BodyTooLarge."""
        room, members_max = self.step_bytes_max, self.members + STEP_MEMBERS_MAX
        parts: list[bytes] = []
        while room and self.has_more and self.members < members_max:
            part = self._next(room)
            room -= len(part)
            self.inflated += len(part)
            parts.append(part)
        if self.inflated > self._bytes_max:
            raise BodyTooLarge(
                f"A body may inflate to at most {self._bytes_max:,} bytes here. This one is larger."
            )
        return b"".join(parts)

    def _next(self, room: int) -> bytes:
        if self._member is None or self._member.eof:
            if self.members == MEMBERS_MAX:
                raise BadRequest(f"The body's gzip has more than {MEMBERS_MAX:,} members. Use one.")
            self.members += 1
            self._member = zlib.decompressobj(GZIP_WINDOW)
        member = self._member
        given = self._piece[self._at : self._at + _SLICE_BYTES]
        try:
            part: bytes = member.decompress(given, room)
        except zlib.error as error:
            raise BadRequest(f"The body is not gzip: {error}.") from error
        self._at += len(given) - len(member.unused_data or member.unconsumed_tail)
        return part

    def finish(self) -> None:
        """Raise BadRequest unless the last member is whole. An empty body is whole."""
        if self._member is not None and not self._member.eof:
            raise BadRequest("The body's gzip is cut off.")

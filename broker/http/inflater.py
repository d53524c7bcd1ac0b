"""Unpacking gzip in steps: each step makes a bounded number of bytes, and the caller decides when it is taken.

A few bytes can unpack to a thousand times as many. So the caller makes room for a step before it takes it, and
takes large bodies' steps in a thread. zlib lets other threads run while it unpacks; what holds them up is
the copying of one step, some 0.1 ms.

A gzip may have several members, one behind the other. Each costs about the same, however little is in it, so
their number is bounded, too: enough for tools that pack every 64 KiB apart.
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
"""zlib copies what it has not come to yet; this bounds how much that is."""


class Inflater:
    """Unpacks one body, fed piece by piece, never past a bound."""

    __slots__ = ("_at", "_bytes_max", "_member", "_piece", "inflated", "members", "read")

    def __init__(self, bytes_max: int) -> None:
        """Start before the first member. ``bytes_max``: what all members together may unpack to."""
        self._bytes_max = bytes_max
        self._member: Any = None
        self._piece = memoryview(b"")
        self._at = 0
        self.members = 0
        self.read = 0
        """Bytes of pieces, as sent."""
        self.inflated = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece; the one before it is used up."""
        self._piece, self._at = memoryview(piece), 0
        self.read += len(piece)

    @property
    def has_more(self) -> bool:
        """Whether the piece has bytes that no step came to yet."""
        return self._at < len(self._piece)

    @property
    def step_bytes_max(self) -> int:
        """The most that the next step makes: one byte past the bound, at most."""
        return min(STEP_BYTES_MAX, self._bytes_max - self.inflated + 1)

    def step(self) -> bytes:
        """Return what comes next. Raises BadRequest, BodyTooLarge."""
        room, members_max = self.step_bytes_max, self.members + STEP_MEMBERS_MAX
        parts: list[bytes] = []
        while room and self.has_more and self.members < members_max:
            part = self._next(room)
            room -= len(part)
            self.inflated += len(part)
            parts.append(part)
        if self.inflated > self._bytes_max:
            raise BodyTooLarge(
                f"A body may unpack to {self._bytes_max:,} bytes here; this one is larger."
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
            raise BadRequest(f"The body is no gzip: {error}.") from error
        self._at += len(given) - len(member.unused_data or member.unconsumed_tail)
        return part

    def finish(self) -> None:
        """Raise BadRequest unless the last member is whole; an empty body is whole."""
        if self._member is not None and not self._member.eof:
            raise BadRequest("The body's gzip is cut off.")

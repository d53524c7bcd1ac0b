"""Join the pieces of a body without long copies.

A copy of 100 MB takes 60 ms, and meanwhile Python runs nothing else in the process. So large bodies are joined in this
way::

    up to 4 MiB      in one buffer that grows; its bytes are taken over, not copied
    up to 32 MiB     in slabs of 4 MiB, joined at the end, in a thread: joining lets other threads run
    above            joined once at 32 MiB; from there the system's allocator grows the buffer without a copy

So a body is in memory once. Only during the join, at most its first 36 MiB are in memory twice.
"""

from __future__ import annotations

import io
from typing import Final

SLAB_BYTES: Final = 4 * 1024 * 1024
JOIN_BYTES: Final = 32 * 1024 * 1024
"""glibc maps larger blocks page by page, and moves them by their page table."""


class Pieces:
    """The pieces of a body that have arrived."""

    __slots__ = ("_buffer", "_is_joined", "_slabs", "size")

    def __init__(self) -> None:
        """Begin without pieces."""
        self.size = 0
        self._slabs: list[bytes] = []
        self._buffer = io.BytesIO()
        self._is_joined = False

    def add(self, piece: bytes) -> None:
        """Keep the next piece."""
        self.size += len(piece)
        self._buffer.write(piece)
        if not self._is_joined and self._buffer.tell() >= SLAB_BYTES:
            self._slabs.append(self._buffer.getvalue())
            self._buffer = io.BytesIO()

    @property
    def in_slabs(self) -> bool:
        """True if ``join`` is needed before ``whole``."""
        return bool(self._slabs)

    @property
    def join_is_due(self) -> bool:
        """True if there are so many slabs that ``join`` is needed before the next piece."""
        return len(self._slabs) * SLAB_BYTES > JOIN_BYTES

    def join(self) -> None:
        """Join all pieces into one buffer. Run this in a thread: it takes 0.5 ms per MiB, and ``size`` bytes more."""
        slabs = self._slabs
        slabs.append(self._buffer.getvalue())
        # Keep no other reference to the joined bytes: only then the buffer grows them in place.
        buffer = io.BytesIO(b"".join(slabs))
        buffer.seek(0, io.SEEK_END)
        slabs.clear()
        if slabs is self._slabs:
            self._buffer = buffer
            self._is_joined = True

    def clear(self) -> None:
        """Free all pieces, also while a thread joins them."""
        self._slabs, self._buffer = [], io.BytesIO()

    def whole(self) -> bytes:
        """Return the body. Add no piece after this."""
        assert not self._slabs, "not joined"
        return self._buffer.getvalue()

"""The pieces of a body, on their way to being one.

A copy of 100 MB takes 60 ms, and while Python makes it nothing else runs in the process. So large bodies are
put together in this way::

    up to 4 MiB      in one buffer that grows; its bytes are taken over, not copied
    up to 32 MiB     in slabs of 4 MiB, joined at the end, in a thread: joining lets other threads run
    above            joined once at 32 MiB; from there the system's allocator grows the buffer without a copy

So a body is held once, and for the time of the join its first 36 MiB at most twice.
"""

from __future__ import annotations

import io
from typing import Final

SLAB_BYTES: Final = 4 * 1024 * 1024
JOIN_BYTES: Final = 32 * 1024 * 1024
"""glibc maps what is larger than this page by page, and moves it by its page table."""


class Pieces:
    """What has come of a body."""

    __slots__ = ("_buffer", "_is_joined", "_slabs", "size")

    def __init__(self) -> None:
        """Hold nothing."""
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
        """Whether ``join`` is needed before ``whole``."""
        return bool(self._slabs)

    @property
    def join_is_due(self) -> bool:
        """Whether there are so many slabs that they should be joined before more comes."""
        return len(self._slabs) * SLAB_BYTES > JOIN_BYTES

    def join(self) -> None:
        """Make one buffer of all; ``size`` bytes more are held meanwhile. For a thread: 0.5 ms a MiB."""
        slabs = self._slabs
        slabs.append(self._buffer.getvalue())
        # The buffer must be the only one that has these bytes: then it grows them in place.
        buffer = io.BytesIO(b"".join(slabs))
        buffer.seek(0, io.SEEK_END)
        slabs.clear()
        if slabs is self._slabs:
            self._buffer = buffer
            self._is_joined = True

    def clear(self) -> None:
        """Let go of all, also while a thread joins it."""
        self._slabs, self._buffer = [], io.BytesIO()

    def whole(self) -> bytes:
        """Return the body; nothing may be added after it."""
        assert not self._slabs, "not joined"
        return self._buffer.getvalue()

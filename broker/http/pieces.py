"""The pieces of a body that have arrived, and those of bodies that were given up."""

from __future__ import annotations

import asyncio
import io
import mmap
from collections import deque
from collections.abc import Iterable
from typing import Final

SLAB_BYTES: Final = 4 * 1024 * 1024
BUFFER_BYTES: Final = 256 * 1024
FREED_SLABS_MAX: Final = 8
"""How many slabs are freed in an iteration of the loop: to free 100 MiB at once takes 10 ms."""


class DroppedSlabs:
    """The slabs of bodies that were given up. Many bodies may be given up at once, each with many slabs.

    Their bytes do not count any more. So a slab is freed for each piece that any body keeps, which is smaller: the bytes
    of all bodies and of these slabs together do not rise. The loop frees the others, some in each of its iterations.
    """

    __slots__ = ("_is_freeing", "_slabs")

    def __init__(self) -> None:
        self._slabs: deque[mmap.mmap] = deque()
        self._is_freeing = False

    def add(self, slabs: Iterable[mmap.mmap]) -> None:
        """Take the slabs of a body."""
        self._slabs.extend(slabs)
        self._go_on()

    def free(self, count: int = 1) -> None:
        """Free some slabs."""
        for _ in range(min(count, len(self._slabs))):
            self._slabs.popleft().close()

    def _go_on(self) -> None:
        if self._slabs and not self._is_freeing:
            self._is_freeing = True
            asyncio.get_running_loop().call_soon(self._free_some)

    def _free_some(self) -> None:
        self._is_freeing = False
        self.free(FREED_SLABS_MAX)
        self._go_on()


class Pieces:
    """The pieces of a body that have arrived, in slabs: very many small pieces would take much more memory.

    A slab is memory of its own, which the system gets back with it. Blocks of this size that the allocator gets back lie
    between others, and it kept 300 MiB of them beside 500 MiB of bodies.
    """

    __slots__ = ("_buffer", "_dropped", "_room", "_slabs", "size")

    def __init__(self, dropped: DroppedSlabs) -> None:
        """Begin without pieces."""
        self.size = 0
        self._dropped = dropped
        self._slabs: list[mmap.mmap] = []
        self._room = 0
        """The free bytes of the last slab."""
        self._buffer = io.BytesIO()
        """The last pieces: a small body needs no slab."""

    def add(self, piece: bytes) -> None:
        """Keep the next piece."""
        self.size += len(piece)
        self._dropped.free()
        self._buffer.write(piece)
        if self._buffer.tell() >= BUFFER_BYTES:
            self._keep(memoryview(self._buffer.getvalue()))
            self._buffer = io.BytesIO()

    def _keep(self, data: memoryview) -> None:
        while data:
            if not self._room:
                self._slabs.append(mmap.mmap(-1, SLAB_BYTES))
                self._room = SLAB_BYTES
            written = self._slabs[-1].write(data[: self._room])
            self._room -= written
            data = data[written:]

    def joined(self) -> bytes:
        """Return the body, and free the pieces."""
        last = self._buffer.getvalue()
        if not self._slabs:
            return last
        parts = [memoryview(slab) for slab in self._slabs]
        body = b"".join([*parts[:-1], parts[-1][: SLAB_BYTES - self._room], last])
        del parts
        for slab in self._slabs:
            slab.close()
        self._slabs = []
        return body

    def clear(self) -> None:
        """Free all pieces soon."""
        self._buffer = io.BytesIO()
        slabs, self._slabs, self._room = self._slabs, [], 0
        self._dropped.add(slabs)

"""All chances of a run from its seed, also those that the shipped code draws by itself.

Nodes and clients take names, keys and jitter from the system's generators, as they should. For the time of
a run these are the seed's: what is drawn then depends on the order of the draws alone, which the virtual
loop repeats. Nothing may be drawn by a thread meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import uuid
from collections.abc import Generator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def seeded(seed: int | str) -> Generator[None]:
    """Let every generator of this process draw from ``seed``."""
    drawn = random.Random(f"{seed}/drawn")

    class Seeded(random.Random):
        """A generator that nobody gave a seed, which is the run's."""

        def __init__(self, given: Any = None) -> None:
            super().__init__(drawn.random() if given is None else given)

    def token_bytes(count: int | None = None) -> bytes:
        return drawn.randbytes(32 if count is None else count)

    def token_hex(count: int | None = None) -> str:
        return token_bytes(count).hex()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=drawn.randbytes(16), version=4)

    before = random.getstate()
    random.seed(f"{seed}/global")
    try:
        with (
            mock.patch.object(random, "Random", Seeded),
            mock.patch.object(secrets, "token_bytes", token_bytes),
            mock.patch.object(secrets, "token_hex", token_hex),
            mock.patch.object(uuid, "uuid4", uuid4),
        ):
            yield
    finally:
        random.setstate(before)

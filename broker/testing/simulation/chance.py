"""Draw all random numbers of a run from its seed, also those that the product draws.

Nodes and clients take names, keys and jitter from the system's generators. During a run these generators draw from the
seed. Then each drawn number depends only on the order of the draws, and the virtual loop repeats this order. No other
thread may draw numbers during a run.
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
    numbers = random.Random(f"{seed}/numbers")

    class Seeded(random.Random):
        """A generator; without a seed of its own it takes one from the run."""

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
            mock.patch.object(secrets, "randbelow", numbers.randrange),
            mock.patch.object(secrets, "randbits", numbers.getrandbits),
            mock.patch.object(uuid, "uuid4", uuid4),
        ):
            yield
    finally:
        random.setstate(before)

"""The clients of this process: one for each set of settings, kept as long as the process lives.

Spark uses its Python processes again and again, for one partition or micro-batch after the other. A client
that is kept saves each of them the connections. ``SyncClient`` may be shared by threads, and notices a fork.
"""

from __future__ import annotations

from functools import lru_cache

from broker.client.sync import SyncClient
from broker.client.values import Settings


@lru_cache(maxsize=16)
def client_of(settings: Settings) -> SyncClient:
    """Return this process's client with these settings."""
    return SyncClient(settings=settings)

"""The clients of this process: one for each set of settings, kept as long as the process lives.

Spark reuses its Python processes for one partition or micro-batch after the other. All of them share a kept client
and its connections. Threads may share a ``SyncClient``, and it notices a fork.
"""

from __future__ import annotations

from functools import lru_cache

from broker.client.sync import SyncClient
from broker.client.values import Settings


@lru_cache(maxsize=16)
def client_of(settings: Settings) -> SyncClient:
    """Return this process's client with these settings."""
    return SyncClient(settings=settings)

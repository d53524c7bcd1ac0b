"""docker-compose, to check a compose file. Reading a file needs no Docker engine."""

from __future__ import annotations

from pathlib import Path

from broker.local.servers.cache_folder import ServerMissing, place

VERSION = "2.40.3"


def binary() -> Path:
    """Return the path of the fetched program.

    Raises:
        ServerMissing: It was not fetched.
    """
    found = place("compose", VERSION) / "docker-compose"
    if not found.is_file():
        message = "compose is not fetched: make test-servers SERVERS=compose"
        raise ServerMissing(message)
    return found

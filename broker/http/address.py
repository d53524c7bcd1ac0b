"""Where a broker listens, as its URL says it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """Where a broker listens, taken apart once; ``prefix`` is what stands before every path."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Take a URL apart. Raises ValueError if it isn't an http or https one."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"A broker's address looks like http://host:port, not {url!r}.")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(
            parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        )

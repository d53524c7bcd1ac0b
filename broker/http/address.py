"""The address of a broker, parsed from its URL."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit


class CannotListen(OSError):
    """A server can't listen at an address. ``cause`` is the system's error."""

    def __init__(self, cause: OSError, host: str, port: int) -> None:
        super().__init__(cause.errno, f"can't listen on {host}:{port}: {cause}")
        self.cause = cause
        self.host = host
        self.port = port


class Address(NamedTuple):
    """The parts of a broker's URL. ``prefix`` stands before the path of each request."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a URL. Raises ValueError if its scheme is not http or https."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"A broker's address must look like http://host:port, not {url!r}.")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(
            parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a node that listens at ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

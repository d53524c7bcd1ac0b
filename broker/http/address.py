"""The address of a broker, parsed from its URL."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit


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
        """Parse a URL.

        Raises:
            ValueError: its scheme is not http or https, it has no host, or parts that no request would carry: a user
                with a password, a query, a fragment. The error shows no password.
        """
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError(
                f"A broker's address has no user and password: give {_without_user(parts)}, and the credentials as a "
                'header, for example headers=(("Authorization", "Basic …"),).'
            )
        if (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError(f"A broker's address must look like http://host:port, not {url!r}.")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc)


def _without_user(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a node that listens at ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

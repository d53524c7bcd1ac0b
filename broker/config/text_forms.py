"""The forms of texts in the configuration: addresses, URLs, origins and names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Form(NamedTuple):
    """A form of texts: its test, and its name in errors."""

    fits: Callable[[str], object]
    name: str

    def problems(self, value: str | tuple[str, ...] | Mapping[str, str] | None) -> Iterator[str]:
        """Yield a problem for each text that has another form: the value, its items, or its names and values."""
        if isinstance(value, Mapping):
            value = tuple(text for pair in value.items() for text in pair)
        for text in (value,) if isinstance(value, str) else value or ():
            if not self.fits(text):
                shown = re.sub("//.*@", "//…@", text) if self.fits is _is_url else text
                yield f"{shown!r} is not {self.name}"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port != 0
    except ValueError:
        return False
    has_host = bool(parts.hostname) and "@" not in parts.netloc
    return parts.scheme in {"http", "https"} and has_host and has_port


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a node that listens at ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host, number = host.strip("[]"), int(port) if port.isdecimal() else 0
    try:
        host.encode("idna")  # As a look-up of the name does.
    except UnicodeError:
        host = ""
    if not host or not 0 < number < 65_536:
        raise ValueError(f"{text!r} is not host:port")
    return host, number


def _is_address(text: str) -> bool:
    try:
        return bool(parse_address(text))
    except ValueError:
        return False


def _is_network(text: str) -> bool:
    try:
        return bool(ipaddress.ip_network(text))
    except ValueError:
        return False


LISTENED: Final = Form(
    str.strip,  # An empty address would be every address: an unset variable must open nothing.
    "an address to listen on; 0.0.0.0 is every IPv4 address, :: every address",
)
HOST_NAME: Final = Form(
    re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]").fullmatch,
    "a name such as broker.example, without a port",
)
ORIGIN: Final = Form(
    re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+").fullmatch,
    "an origin such as https://app.example: scheme, host and port, no slash at the end",
)
NETWORK: Final = Form(_is_network, "a network such as 10.1.2.0/24 or fd00::/8, or an address")
TOPIC: Final = Form(re.compile(r"[^/]+/[^/]+").fullmatch, "namespace/topic")
HOST_PORT: Final = Form(_is_address, "host:port")
URL: Final = Form(_is_url, "http://host:port")

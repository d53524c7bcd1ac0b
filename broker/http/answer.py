"""The values of the asking side: the address of a server, and the results of a request.

The result is an answer read whole, a streamed answer, or no answer.

Two questions decide the meaning of a lost connection::

    was a byte of the request handed to the socket?     no: NotSent, the request may be repeated
    did an earlier answer say ``Connection: close``?    yes: NotSent, too; the server did not process
                                                        the requests behind that one
                                                        (RFC 9112, 9.6)

In all other cases without a whole answer, the result is NoAnswer: it is unknown whether the server executed the
request. The caller decides what follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

_NOT_IN_A_URL: Final = re.compile(r"[\x00-\x20\x7f]")


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
                f"A broker's address has no user and password: give {_without_user(parts)}, and the token by token_file, "
                'or other credentials as a header, for example headers=(("Authorization", "Basic …"),).'
            )
        if (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or parts.query
            or parts.fragment
            or _NOT_IN_A_URL.search(url.strip())
        ):
            raise ValueError(
                f"A broker's address must look like http://host:port, not {_shown(url)!r}."
            )
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"), parts.netloc)


def _shown(url: str) -> str:
    """Return an address as errors show it: of its query, and of what may be a password, nothing."""
    head, mark, _ = url.partition("?")
    return f"…@{head.rpartition('@')[2]}" if "@" in head else head + (mark and "?…")


def _without_user(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class NotSent(Exception):
    """The server has certainly not received the request, or will not process it."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and no whole answer came."""


class HttpAnswer(NamedTuple):
    """One whole HTTP answer. The names of ``headers`` are in lower case. ``url`` is the address that was asked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = ""

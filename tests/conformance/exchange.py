"""One connection to a server, on which a test writes the exact bytes of its requests.

An HTTP library would hide the tested cases: it adds headers, refuses odd methods, and hides whether the server closed
the connection. ``http.client`` only parses the answers: these tests do not test how answers are read.
"""

import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Self

from multidict import CIMultiDict

from tests.kit.openapi import Answered, Checker

TIMEOUT_S = 20.0
ANY_ZLIB_FORMAT = 47


@dataclass(frozen=True, slots=True)
class Sent:
    """A request. ``chunks``, if given, are its body in chunked framing.

    ``length`` is the header Content-Length: by default the length of the body; "" for no header.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    chunks: tuple[bytes, ...] | None = None
    length: str | None = None

    def bytes_on_the_wire(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in (self.headers or {}).items()]
        body = self.body
        if self.chunks is not None:
            lines.append("Transfer-Encoding: chunked")
            framed = (b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in self.chunks)
            body = b"".join(framed) + b"0\r\n\r\n"
        elif self.length is None:
            lines.append(f"Content-Length: {len(body)}")
        elif self.length:
            lines.append(f"Content-Length: {self.length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class Received:
    """An answer. ``closed``: the server announced that it closes the connection, or closed it."""

    status: int
    type: str
    framing: str
    closed: bool
    encoding: str
    body: bytes
    whole: bool


class Connection:
    """Keeps one connection alive over many requests, and opens a new one after it was closed.

    ``checker`` checks every complete answer.
    """

    def __init__(self, host: str, port: int, checker: Checker | None = None) -> None:
        self._address = (host, port)
        self._checker = checker
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, sent: Sent) -> Received:
        """Send a request and read its answer.

        Raises:
            ConnectionError: the server closed the connection without an answer.
            Undocumented: the checker does not allow the answer.
        """
        kept = self._socket is not None
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=TIMEOUT_S)
        # A server may refuse a large body before all of it is sent. Its answer can be read nevertheless.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(sent.bytes_on_the_wire())
        response = HTTPResponse(self._socket, method=sent.method)
        try:
            received = self._receive(response)
        except (HTTPException, OSError) as error:
            self.close()
            where = "a kept" if kept else "a new"
            message = f"{sent.method} {sent.path}: no answer on {where} connection: {error!r}"
            raise ConnectionError(message) from error
        if self._checker is not None and received.whole:
            answered = Answered(
                received.status, CIMultiDict(response.headers.items()), received.body
            )
            self._checker.check(sent.method, sent.path, answered)
        return received

    def _receive(self, response: HTTPResponse) -> Received:
        response.begin()
        try:
            body, whole = response.read(), True
        except IncompleteRead as error:
            body, whole = error.partial, False
        encoding = response.headers.get("Content-Encoding", "")
        if encoding:
            body = zlib.decompress(body, ANY_ZLIB_FORMAT)
        received = Received(
            status=response.status,
            type=response.headers.get("Content-Type", ""),
            framing="chunked"
            if response.chunked or "Transfer-Encoding" in response.headers
            else "length"
            if "Content-Length" in response.headers
            else "none",
            closed=response.will_close or not whole,
            encoding=encoding,
            body=body,
            whole=whole,
        )
        response.close()
        if received.closed:
            self.close()
        return received

"""Connections that send several requests at once, and read the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools
from typing_extensions import override

from tests.kit.fuzzing.corpus import Answer

ANSWER_S: Final = 30.0
"""Longer than any request here may take."""
LINGER_S: Final = 2.0
"""The time in which the broker ends a half-closed connection with broken framing."""
TEXT_BYTES: Final = 300


class FuzzedConnection(asyncio.Protocol):
    """One connection; the broker decides when it ends."""

    def __init__(self) -> None:
        """Begin without requests."""
        self.answers: list[Answer] = []
        self.closing = False
        """True if the last answer announced the end of the connection."""
        self.open = False
        self._wanted = 0
        self._changed: asyncio.Future[None] | None = None
        self._reader = httptools.HttpResponseParser(self)
        self._error = ""
        self._body = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, port: int) -> FuzzedConnection:
        """Connect to a port of loopback."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    async def exchange(self, data: bytes, requests: int) -> list[Answer]:
        """Send requests at once, and return their answers; there are fewer if the connection ended.

        Raises:
            TimeoutError: the broker neither answered nor closed the connection.
        """
        assert self._transport is not None
        self.answers, self._wanted = [], requests
        self._transport.write(data)
        await self._until(lambda: len(self.answers) >= requests or not self.open, ANSWER_S)
        return self.answers

    async def last(self, data: bytes) -> list[Answer]:
        """Send bytes that may be no valid requests, half close, and return all answers until the end."""
        assert self._transport is not None
        self.answers, self._wanted = [], 1 << 30
        self._transport.write(data)
        self._transport.write_eof()
        try:
            await self._until(lambda: not self.open, LINGER_S)
        except TimeoutError:
            self.abort()
        return self.answers

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not done():
                self._changed = asyncio.get_running_loop().create_future()
                await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed_data(data)
        except httptools.HttpParserError as error:
            self.answers.append(Answer(0, "not_http", str(error)))
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._wake()

    # --- Callbacks of the parser ------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep an error's code."""
        if name == b"Broker-Error":
            self._error = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Keep the beginning of an error's text."""
        if self._error and len(self._body) < TEXT_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        """Keep a final answer; ignore interim answers."""
        status = self._reader.get_status_code()
        if status < 200:
            return
        self.answers.append(Answer(status, self._error, self._body.decode("utf-8", "replace")))
        self.closing = not self._reader.should_keep_alive()
        self._error, self._body = "", b""
        if len(self.answers) >= self._wanted:
            self._wake()

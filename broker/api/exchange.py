"""One request as aiohttp's protocol is to see it, and the answer that it is to see.

The protocol makes the first of each parsed message and gives it to the handler, which gives back the second
once the reply is sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from typing_extensions import override

if TYPE_CHECKING:
    from broker.api.connection import Connection


class Sent(web.StreamResponse):
    """Tells aiohttp that the reply was sent, and whether the connection stays open."""

    def __init__(self, *, keep_alive: bool) -> None:
        """Keep the one thing that matters; there is one object of each kind."""
        super().__init__()
        self._stays_open = keep_alive

    @property
    @override
    def keep_alive(self) -> bool:
        return self._stays_open

    @override
    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    @override
    async def write_eof(self, data: bytes = b"") -> None:
        return None


class Exchange:
    """One request as the parser read it, and the way back to its client.

    It stands where aiohttp would put a BaseRequest, whose making and whose properties cost more than
    all of our own handling; of its many attributes the protocol uses the three at the end.
    """

    __slots__ = (
        "_task",
        "connection",
        "content",
        "headers",
        "keep_alive",
        "message",
        "method",
        "path",
        "takes_chunks",
        "writer",
    )

    def __init__(
        self,
        message: RawRequestMessage,
        content: StreamReader,
        connection: Connection,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> None:
        """Keep what the protocol gives; ``path`` is raw and has the query."""
        self.message = message
        self.method = message.method
        self.path = message.path
        self.headers = message.headers
        self.keep_alive = not message.should_close
        self.takes_chunks = message.version >= HttpVersion11
        self.content = content
        self.connection = connection
        connection.headers = message.headers
        connection.begun = True
        self.writer = writer
        self._task = task

    def _finish(self) -> None:
        """Be told that the reply is made: there is nothing to clean up."""

    def _cancel(self, error: BaseException) -> None:
        """Be told that the client is gone: whoever reads its body should know."""
        self.content.set_exception(error)


SENT = Sent(keep_alive=True)
SENT_LAST = Sent(keep_alive=False)

"""Bulk reads: all messages of a range, in Arrow's format.

A reply is a stream of batches that ends with a marker. If reading fails after the status line was sent, the node
sends no marker and cuts the connection, as it does for polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from broker.api.arrow import ArrowMaker, ArrowStream
from broker.api.asked import id_in, in_generation, read_snapshot
from broker.api.polls import blocked_by
from broker.api.router import TopicHandlers
from broker.errors import BadRequest
from broker.http.reply import Answer, ChunkedReply, Piece
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import Snapshot
from broker.operations.media_types import ARROW
from broker.topics.pages import PollPage, cut
from broker.topics.streams import BulkStream

THREAD_BYTES_MIN: Final = 4 * 1024 * 1024
THREAD_ATTRIBUTES_BYTES_MIN: Final = 16 * 1024
"""A page with at least so many bytes of payloads, or of keys and headers, is converted in a thread. On the loop it
would delay other requests."""


class BulkReading(TopicHandlers):
    """The handlers of bulk reads."""

    _maker: ArrowMaker | None = None

    async def arrow(self, request: Request) -> Answer:
        """Answer all messages of a range."""
        return await self._read(request, None)

    async def arrow_as(self, request: Request) -> Answer:
        """Answer the messages of a range, up to the first one that blocks the reading transaction."""
        return await self._read(request, await read_snapshot(request))

    async def _read(self, request: Request, snapshot: Snapshot | None) -> Answer:
        first, last = id_in(request, "after"), id_in(request, "through")
        if last is None:
            raise BadRequest("through: give the last id of the range; `range` returns it.")
        if self._maker is None:
            self._maker = await asyncio.to_thread(ArrowMaker)  # The import takes long.
        found = await self._topics.bulk(
            request.topic, first, last, snapshot, request.usage, generation=request.generation
        )
        headers = (*in_generation(found.generation), *blocked_by(found.blocked_by))
        pieces = _pieces(self._maker.stream(), found, request.usage.caller)
        return ChunkedReply(pieces, ARROW, headers, compressible=False)


async def _pieces(
    stream: ArrowStream, found: BulkStream, caller: str
) -> AsyncGenerator[Piece, None]:
    while (page := await found.next()) is not None:
        if _takes_long(page):
            pieces = await heavy(caller, partial(stream.batch, page))
        else:
            pieces = stream.batch(page)
        del page  # Free the memory of each piece as soon as a slow reader has taken it.
        while pieces:
            for piece in cut(pieces.pop(0)):
                yield piece
    yield stream.end()


def _takes_long(page: PollPage) -> bool:
    if page.bytes >= THREAD_BYTES_MIN:
        return True
    attributes_bytes = sum([len(entry.attributed) for entry, _, _, _ in page.runs])
    return attributes_bytes >= THREAD_ATTRIBUTES_BYTES_MIN

"""Look into a topic without consuming: as JSON, page by page, in either direction."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import orjson

from broker.api.asked import in_generation, place_in, read_snapshot
from broker.api.messages.message_list import (
    MESSAGES_AT_ONCE,
    JsonList,
    ShownParts,
    form_of,
    shown_beside,
)
from broker.api.router import TopicHandlers
from broker.http.budget import BudgetKind, Usage
from broker.http.reply import Answer, ChunkedReply, Piece, Reply
from broker.http.request import Request
from broker.model import Snapshot, timestamp_of
from broker.moments import rfc3339, rfc3339_or_none
from broker.operations.media_types import JSON
from broker.operations.parameters import BROWSE_LIMIT, ORDER, PAYLOAD
from broker.places import Place
from broker.topics.browse import BrowseEntry, BrowseQuery, EntryPage
from broker.wire import attributes
from broker.wire.avrojson import PART_BYTES
from broker.wire.jsontext import shown_long

PREVIEW_BYTES = 1024
_OPENING: Final = b'{"messages":'


class Browsing(TopicHandlers):
    """The handlers of browse."""

    async def browse(self, request: Request) -> Answer:
        """Answer a page of messages, and the place where the next page begins."""
        return await self._page(request, None)

    async def browse_as(self, request: Request) -> Answer:
        """Answer a page that also says which messages the transaction of the snapshot could consume."""
        return await self._page(request, await read_snapshot(request))

    async def _page(self, request: Request, snapshot: Snapshot | None) -> Answer:
        query = request.query
        bytes_max = None if PAYLOAD.of(query) == "full" else PREVIEW_BYTES
        wanted = BrowseQuery(
            start=place_in(request, "from"),
            end=place_in(request, "to"),
            limit=BROWSE_LIMIT.of(query, most=self._parts.config.limits.browse_messages_max),
            descending=ORDER.of(query) == "desc",
            snapshot=snapshot,
            # The extra byte shows whether the payload is longer than the preview.
            payload_bytes_max=None if bytes_max is None else bytes_max + 1,
        )._replace(generation=request.generation)
        page = await self._topics.browse(request.topic, wanted, request.usage)
        size = sum([len(entry.payload or b"") for entry in page.entries])
        out = _list(bytes_max)
        if size > PART_BYTES or len(page.entries) > MESSAGES_AT_ONCE:
            return ChunkedReply(
                _chunks(page, out, request.usage), JSON, in_generation(page.generation)
            )
        messages = b"".join([each async for each in out.pieces(page.entries)]) + out.end()
        return Reply(200, _OPENING + messages + _end(page), JSON, in_generation(page.generation))


async def _chunks(
    page: EntryPage, out: JsonList[BrowseEntry], usage: Usage
) -> AsyncGenerator[Piece, None]:
    """Yield a page in pieces, some messages at a time. Give back the budget of the messages already sent."""
    entries = page.entries[::-1]
    page.entries.clear()
    yield _OPENING
    while entries:
        some = entries[: -MESSAGES_AT_ONCE - 1 : -1]
        del entries[-MESSAGES_AT_ONCE:]
        async for piece in out.pieces(some):
            yield piece
        usage.give(BudgetKind.REPLY_BYTES, _bytes_of(some))
    yield out.end() + _end(page)


def _bytes_of(entries: Sequence[BrowseEntry]) -> int:
    return sum([len(entry.payload or b"") + len(entry.attributes) for entry in entries])


def _end(page: EntryPage) -> bytes:
    following = None if page.next is None else str(Place(page.next, page.generation))
    return b',"next":%b}' % orjson.dumps(following)


def _list(bytes_max: int | None) -> JsonList[BrowseEntry]:
    """Return a list that shows at most ``bytes_max`` bytes of each payload."""
    return JsonList(form_of(lambda entry: _parts(entry, bytes_max), bytes_max))


def _parts(entry: BrowseEntry, bytes_max: int | None) -> ShownParts:
    time_ms = timestamp_of(entry.id)
    before = {
        "id": entry.id.hex(),
        "time": rfc3339(time_ms),
        "timestamp_ms": time_ms,
        "size": entry.size,
        "expires_at": rfc3339_or_none(entry.expires_at_ms),
        "kind": entry.kind,
        "tx_state": entry.tx_state,
        "write_pointer": shown_long(entry.pointer),
    }
    behind = {
        "truncated": bytes_max is not None and len(entry.payload or b"") > bytes_max,
        **shown_beside(*attributes.decode(entry.attributes)),
    }
    if entry.consumable is not None:
        behind["consumable"] = entry.consumable
    return ShownParts(before, entry.payload, behind)

"""Look into a topic without consuming: as JSON, page by page, in either direction."""

from __future__ import annotations

from typing import Any

from broker.api.payloads import shown, shown_beside
from broker.api.times import parse_place, rfc3339, rfc3339_or_none
from broker.http.reply import Answer, json_reply
from broker.http.request import Request, one_of, whole_number
from broker.model import Snapshot, timestamp_of
from broker.topics.browse import BrowseEntry, BrowseQuery
from broker.topics.service import Topics
from broker.wire import attributes
from broker.wire.snapshotjson import decode_snapshot_body

LIMIT_DEFAULT = 100
PREVIEW_BYTES = 1024


class Browsing:
    """The handlers that look."""

    def __init__(self, topics: Topics, *, messages_max: int) -> None:
        """Keep the service; ``messages_max`` bounds one page."""
        self._topics = topics
        self._messages_max = messages_max

    async def browse(self, request: Request) -> Answer:
        """Answer a page of messages and where the next one begins."""
        return await self._page(request, None)

    async def browse_with_snapshot(self, request: Request) -> Answer:
        """Answer a page that also says what a transaction could consume."""
        return await self._page(request, decode_snapshot_body(request.body))

    async def _page(self, request: Request, snapshot: Snapshot | None) -> Answer:
        query = request.query
        start, end = query.get("from"), query.get("to")
        wanted = BrowseQuery(
            start=None if start is None else parse_place("from", start),
            end=None if end is None else parse_place("to", end),
            limit=whole_number(
                query, "limit", least=1, most=self._messages_max, default=LIMIT_DEFAULT
            ),
            descending=one_of(query, "order", ("asc", "desc")) == "desc",
            snapshot=snapshot,
        )
        full = one_of(query, "payload", ("preview", "full")) == "full"
        page = await self._topics.browse(request.topic, wanted)
        bytes_max = None if full else PREVIEW_BYTES
        return json_reply(
            {
                "messages": [_entry(entry, bytes_max) for entry in page.entries],
                "next": None if page.next is None else page.next.hex(),
            }
        )


def _entry(entry: BrowseEntry, bytes_max: int | None) -> dict[str, Any]:
    time_ms = timestamp_of(entry.id)
    payload = None if entry.payload is None else shown(entry.payload, bytes_max)
    told: dict[str, Any] = {
        "id": entry.id.hex(),
        "time": rfc3339(time_ms),
        "timestamp_ms": time_ms,
        "size": 0 if entry.payload is None else len(entry.payload),
        "expires_at": rfc3339_or_none(entry.expires_at_ms),
        "kind": entry.kind,
        "tx_state": entry.tx_state,
        "write_pointer": entry.pointer,
        "encoding": "text" if payload is None else payload.encoding,
        "payload": None if payload is None else payload.text,
        "truncated": payload is not None and payload.truncated,
        **shown_beside(*attributes.decode(entry.attributes)),
    }
    if entry.consumable is not None:
        told["consumable"] = entry.consumable
    return told

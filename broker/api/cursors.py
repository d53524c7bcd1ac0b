"""Handlers of named cursors: list, show, put, delete. Any node answers these requests; none forwards them."""

from __future__ import annotations

from typing import Final

from broker.api import asked
from broker.api.asked import end_of
from broker.api.router import TopicHandlers
from broker.errors import BadRequest
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.model import LOG_KEY_BYTES, Topic, check_cursor
from broker.operations.parameters import CURSOR_LIMIT
from broker.operations.replies import Cursor, CursorDeleted, CursorLag, Cursors, Unread
from broker.operations.sent import CursorSent
from broker.operations.table import CURSOR_BYTES_MAX
from broker.places import Place
from broker.topics.cursors import StoredCursor, shown

DATA_BYTES_MAX: Final = 1024


class CursorHandlers(TopicHandlers):
    """The handlers of named cursors."""

    async def cursors(self, request: Request) -> Answer:
        """Answer a page of a topic's cursors, each with its lag."""
        query = request.query
        limit = CURSOR_LIMIT.of(query)
        topic = await self._topics.get(request.topic, request.generation)
        page = await self._topics.cursors.page(topic, query.get("after", ""), limit)
        told = [await self._with_lag(topic, cursor) for cursor in page.cursors]
        return json_reply(Cursors(cursors=told, next=page.next))

    async def show_cursor(self, request: Request) -> Answer:
        """Answer one cursor with its lag."""
        name = check_cursor(request.names.cursor)
        topic = await self._topics.get(request.topic, request.generation)
        cursor = await self._topics.cursors.get(topic, name)
        return json_reply(await self._with_lag(topic, cursor))

    async def put_cursor(self, request: Request) -> Answer:
        """Move or create a cursor, if its version is the one that the request expects."""
        name = check_cursor(request.names.cursor)
        place, expected, data = _decode_put(request.body)
        after = None if place is None else request.id_at(place)
        topic = await self._topics.get(request.topic, request.generation)
        cursor = await self._topics.cursors.put(topic, name, after, expected, data)
        return json_reply(_shown(topic, cursor))

    async def delete_cursor(self, request: Request) -> Answer:
        """Delete a cursor; answer whether there was one."""
        name = check_cursor(request.names.cursor)
        topic = await self._topics.get(request.topic, request.generation)
        return json_reply(CursorDeleted(deleted=await self._topics.cursors.delete(topic, name)))

    async def _with_lag(self, topic: Topic, cursor: StoredCursor) -> CursorLag:
        after = None if cursor.after is None else cursor.after[:LOG_KEY_BYTES]
        unread = await self._topics.unread(topic, after)
        lag = Unread(messages=unread.messages, lost=unread.lost, oldest=end_of(unread.oldest))
        return {**_shown(topic, cursor), "lag": lag}


def _shown(topic: Topic, cursor: StoredCursor) -> Cursor:
    return {**shown(cursor), "generation": topic.generation}


def _decode_put(body: bytes) -> tuple[Place | None, str | None, str]:
    """Return the new place, the expected version, and the data of a put. Raises BadRequest."""
    sent: CursorSent = asked.read_small(body, CursorSent, bytes_max=CURSOR_BYTES_MAX)
    after, data = sent["after"], sent.get("data", "")
    if len(data.encode()) > DATA_BYTES_MAX:
        raise BadRequest(f"data must be text of at most {DATA_BYTES_MAX} bytes.")
    return None if after is None else Place.of(after), sent["expected"], data

"""Named cursors: the broker keeps the places of readers, and changes each by compare-and-set.

A put names the version that it expects. If its answer is lost, the client may send it again: the second put changes
nothing, and has the same answer. So the client retries it like any repeatable request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from broker.client import protocol
from broker.client.calls import Calls
from broker.client.client_request import Reply, json_object, request_for
from broker.client.values import IdPlace, TopicName
from broker.model import MessageId, TopicId, check_cursor


class CursorLag(NamedTuple):
    """The messages behind a cursor.

    ``messages`` of them can be read. ``oldest`` is the id of the first of these, or of its reference, or None if there
    is none. ``lost`` is the number that were published behind the cursor and can't be read any more, at least.
    """

    messages: int
    lost: int
    oldest: MessageId | None


class Cursor(NamedTuple):
    """A named cursor.

    ``after`` is the id of the last message that was read, or None. ``version`` is the version that the next put
    expects. ``data`` is free text of the reader. ``generation`` is that of the topic. ``lag`` is None in the answer
    to a put.
    """

    name: str
    after: MessageId | None
    version: str
    data: str
    updated_ms: int
    generation: int
    lag: CursorLag | None = None


class CursorCalls:
    """The calls of named cursors, one method each; ``client.cursors`` is an object of this class.

    Every method raises TopicNotFound if there is no such topic, and BadName if a name is not valid.
    """

    def __init__(self, calls: Calls, topic_of: Callable[[TopicName], TopicId]) -> None:
        self._calls = calls
        self._topic_of = topic_of

    async def list(self, topic: TopicName) -> list[Cursor]:
        """Return all named cursors of a topic, each with its lag, sorted by name."""
        found: list[Cursor] = []
        behind: str | None = ""
        while behind is not None:
            query = {"after": behind or None}
            request = request_for("cursors", self._topic_of(topic), query=query)
            page, behind = await self._calls.ask(request, partial(_page, behind))
            found += page
        return found

    async def get(self, topic: TopicName, name: str) -> Cursor:
        """Return a cursor with its lag. Raises NotFound."""
        topic_id = self._topic_of(topic)
        request = request_for("show_cursor", topic_id, cursor=check_cursor(name))
        return await self._calls.ask(request, _told)

    async def put(
        self,
        topic: TopicName,
        name: str,
        after: IdPlace | None,
        *,
        expected: str | None,
        data: str = "",
    ) -> Cursor:
        """Move a cursor, or create it.

        Args:
            topic: the topic of the cursor.
            name: 1 to 128 letters, digits and any of ``_ - .``
            after: the id of the last message that was read; None: no message was read. A ``Place`` is refused if the
                topic was deleted and created again.
            expected: the present version of the cursor; None: there is no such cursor yet.
            data: free text of the reader, up to 1,024 bytes.

        Raises:
            CursorMoved: the cursor has another version, or does not exist; ``error.cursor`` is its present state.
                Nothing was changed.
            TopicRecreated: ``after`` is in another generation of the topic.
            TooManyCursors: the topic has the maximum number of cursors.
            OutcomeUnknown: the put may have been done. Repeat the same put to find out.
        """
        place = None if after is None else protocol.id_text(after, "after")
        request = request_for(
            "put_cursor",
            self._topic_of(topic),
            sent={"after": place, "expected": expected, "data": data},
            repeatable=True,  # A repetition finds its own version.
            cursor=check_cursor(name),
        )
        return await self._calls.ask(request, _told)

    async def delete(self, topic: TopicName, name: str) -> bool:
        """Delete a cursor at any version. Return whether it existed at the last attempt."""
        topic_id = self._topic_of(topic)
        request = request_for("delete_cursor", topic_id, cursor=check_cursor(name))
        return await self._calls.ask(request, _deleted)


def _page(behind: str, reply: Reply) -> tuple[list[Cursor], str | None]:
    """Read a page. Raises ValueError if the next one is not further: a list of another server would have no end."""
    answer = json_object(reply)
    if answer["next"] is not None and answer["next"] <= behind:
        raise ValueError("the next page is not behind this one")
    return [_cursor(one) for one in answer["cursors"]], answer["next"]


def _told(reply: Reply) -> Cursor:
    return _cursor(json_object(reply))


def _deleted(reply: Reply) -> bool:
    return bool(json_object(reply)["deleted"])


def _cursor(answer: Mapping[str, Any]) -> Cursor:
    lag = answer.get("lag")
    return Cursor(
        answer["name"],
        _id(answer["after"]),
        answer["version"],
        answer["data"],
        answer["updated_ms"],
        answer["generation"],
        None
        if lag is None
        else CursorLag(lag["messages"], lag["lost"], _id(lag["oldest"] and lag["oldest"]["id"])),
    )


def _id(text: str | None) -> MessageId | None:
    return None if text is None else bytes.fromhex(text)

"""Keep named cursors: readers' places in a topic, each changed by compare-and-set.

Cursors are records, so any node answers, and no leader is needed. There are two kinds of record for each generation
of a topic::

    cursor/ns:topic: | generation int32                        the index: {"name": "incarnation", …}
    cursor/ns:topic: | generation int32 | name 0 incarnation    a cursor: its place, version, data

A cursor exists if the index names it. To create a cursor, this code puts its record under a fresh incarnation,
then changes the index. To delete one, it changes the index, then removes the record. So the index bounds the number
of cursors exactly. A removed record is never used again, because no incarnation comes twice. If a crash or an
error leaves a record out of the index, the sweeper removes it with its generation.

Each write has a fresh version, and notes the version before. A put may be repeated because its answer was lost. It
then finds its own place, written over the version that it expected, and gets the same answer as the first time.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, NoReturn

from broker.clock import Clock
from broker.errors import (
    CursorMoved,
    NotFound,
    OutcomeUnknown,
    StorageCorrupt,
    TooManyCursors,
    UnavailableError,
)
from broker.model import MessageId, Topic, TopicId
from broker.operations.replies import CursorState
from broker.storage.keys import topic_prefix
from broker.storage.records import Record, RecordStore

RECORD_PREFIX: Final = b"cursor/"
TRIES_MAX: Final = 16
"""A try fails only if another request changed the same cursor, or the index, meanwhile. So there is one more for each
cursor that the topic may have."""
_GENERATION: Final = struct.Struct(">i")


class StoredCursor(NamedTuple):
    """A cursor as stored. ``after`` is the last message that was read; None if there is none yet.

    The next put expects ``version``. The last put expected ``before``, which is None if it created the cursor.
    ``data`` is the reader's own.
    """

    name: str
    after: MessageId | None
    version: str
    data: str
    updated_ms: int
    before: str | None = None


class CursorPage(NamedTuple):
    """Some cursors in the order of their names; ``next`` is the name behind which more follow."""

    cursors: list[StoredCursor]
    next: str | None


class _Index(NamedTuple):
    incarnations: Mapping[str, str]
    version: bytes | None


def random_text() -> str:
    """Return a version, or an incarnation, that was never used before."""
    return secrets.token_hex(8)


class Cursors:
    """The named cursors of all topics. Every method raises Unavailable if storage does not answer."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        *,
        cursors_max: int,
        fresh: Callable[[], str] = random_text,
    ) -> None:
        """Keep cursors in ``records``, at most ``cursors_max`` of one topic. ``fresh`` is for tests."""
        self._records = records
        self._clock = clock
        self._cursors_max = cursors_max
        self._fresh = fresh

    async def get(self, topic: Topic, name: str) -> StoredCursor:
        """Return a cursor. Raises NotFound."""
        found = await self._find(topic, name, (await self._index(topic)).incarnations)
        if found is None:
            raise NotFound(f"Topic {topic.id} has no cursor {name}.")
        return found[0]

    async def page(self, topic: Topic, after_name: str, limit: int) -> CursorPage:
        """Return at most ``limit`` cursors behind a name, which need not exist; "" is before all names."""
        incarnations = (await self._index(topic)).incarnations
        names = sorted(name for name in incarnations if name > after_name)
        found = [await self._find(topic, name, incarnations) for name in names[:limit]]
        following = names[limit - 1] if len(names) > limit else None
        return CursorPage([each[0] for each in found if each is not None], following)

    async def put(
        self,
        topic: Topic,
        name: str,
        after: MessageId | None,
        expected: str | None,
        data: str,
        *,
        check: Callable[[int], None] = lambda _: None,
    ) -> StoredCursor:
        """Move a cursor whose version is ``expected``, or create it (None). A repeated put changes nothing more.

        ``check`` gets the number of the topic's cursors, with a new one. It raises an error to refuse that.

        Raises:
            CursorMoved: it has another version, or there is no such cursor. This call changed nothing, with one
                exception: HBase may answer False to a change that it made. If another reader then moves the cursor
                before this node reads it again, the change was made and replaced.
            TooManyCursors: the topic has as many as it may have.
            OutcomeUnknown: it may have been done; repeating it is safe.
        """
        for _ in range(TRIES_MAX + self._cursors_max):
            index = await self._index(topic)
            if name not in index.incarnations:
                if expected is not None:
                    self._refuse_moved(topic, name, None)
                check(len(index.incarnations) + 1)
                created = await self._create(topic, name, after, data, index)
                if created is not None:
                    return created
                continue
            found = await self._find(topic, name, index.incarnations)
            if found is None:
                continue  # It was deleted since the index was read.
            now, record = found
            if now.version == expected:
                moved = self._fresh_cursor(name, after, data, expected)
                key = _cursor_key(topic, name, index.incarnations[name])
                if await self._records.put_if(key, record.version, _encode(moved)) is not None:
                    return moved
            elif (now.before, now.after, now.data) == (expected, after, data):
                return now  # The first attempt did it.
            else:
                self._refuse_moved(topic, name, now)
        raise OutcomeUnknown(f"Changing cursor {name} of {topic.id} did not finish.")

    @staticmethod
    def _refuse_moved(topic: Topic, name: str, now: StoredCursor | None) -> NoReturn:
        if now is None:
            raise CursorMoved(
                f"Topic {topic.id} has no cursor {name}, so no version of it matches."
            )
        place = "the beginning" if now.after is None else now.after.hex()
        raise CursorMoved(
            f"Cursor {name} of {topic.id} is now at {place}, with version {now.version}.",
            cursor=shown(now),
        )

    async def _create(
        self, topic: Topic, name: str, after: MessageId | None, data: str, index: _Index
    ) -> StoredCursor | None:
        """Create a cursor. Return None if the index was changed meanwhile."""
        if len(index.incarnations) >= self._cursors_max:
            raise TooManyCursors(
                f"Topic {topic.id} has {len(index.incarnations)} cursors; the limit is "
                f"{self._cursors_max} (topics.cursors_max). Delete unused cursors."
            )
        incarnation = self._fresh()
        created = self._fresh_cursor(name, after, data, None)
        key = _cursor_key(topic, name, incarnation)
        # The record comes first, then its name: so the index names only records that exist.
        await self._records.put_if(key, None, _encode(created))
        if await self._put_index(topic, index, {**index.incarnations, name: incarnation}):
            return created
        # The answer no is also given if the index was put, and another put came after it (Records.put_if).
        if (await self._index(topic)).incarnations.get(name) == incarnation:
            return created
        await self._records.remove([key])
        return None

    def _fresh_cursor(
        self, name: str, after: MessageId | None, data: str, before: str | None
    ) -> StoredCursor:
        return StoredCursor(name, after, self._fresh(), data, self._clock.now_ms(), before)

    async def delete(self, topic: Topic, name: str) -> bool:
        """Delete a cursor at any version; return whether there was one. Raises OutcomeUnknown: repeat it."""
        for _ in range(TRIES_MAX + self._cursors_max):
            index = await self._index(topic)
            incarnation = index.incarnations.get(name)
            if incarnation is None:
                return False
            left = {each: kept for each, kept in index.incarnations.items() if each != name}
            if await self._put_index(topic, index, left):
                # The cursor is gone already. A record that stays is removed with its generation.
                with suppress(UnavailableError, OutcomeUnknown):
                    await self._records.remove([_cursor_key(topic, name, incarnation)])
                return True
        raise OutcomeUnknown(f"Deleting cursor {name} of {topic.id} did not finish.")

    # Records.

    async def _index(self, topic: Topic) -> _Index:
        key = _index_key(topic)
        found = await self._records.get(key)
        if found is None:
            return _Index({}, None)
        return _Index(_decoded(key, found), found.version)

    async def _put_index(self, topic: Topic, old: _Index, incarnations: Mapping[str, str]) -> bool:
        value = json.dumps(incarnations, separators=(",", ":")).encode()
        return await self._records.put_if(_index_key(topic), old.version, value) is not None

    async def _find(
        self, topic: Topic, name: str, incarnations: Mapping[str, str]
    ) -> tuple[StoredCursor, Record] | None:
        incarnation = incarnations.get(name)
        if incarnation is None:
            return None
        key = _cursor_key(topic, name, incarnation)
        record = await self._records.get(key)
        if record is None:
            return None
        fields = _decoded(key, record)
        try:
            after = fields["after"]
            cursor = StoredCursor(
                name,
                None if after is None else bytes.fromhex(after),
                fields["version"],
                fields["data"],
                fields["updated_ms"],
                fields["before"],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StorageCorrupt(f"the record {key!r} is not a cursor") from error
        return cursor, record


async def forget_cursors(records: RecordStore, topic: TopicId, below: int) -> int:
    """Remove the cursors of generations below one, which get no requests any more; return the number of records.

    Raises:
        Unavailable: storage does not answer; the next call removes the rest.
    """
    prefix, went = RECORD_PREFIX + topic_prefix(topic), 0
    async with aclosing(records.pages(prefix)) as pages:
        async for page in pages:
            old = [key for key, _ in page if _generation_of(prefix, key) < below]
            if old:
                await records.remove(old)
            went += len(old)
            if len(old) < len(page):
                break  # Keys are in the order of generations.
    return went


def shown(cursor: StoredCursor) -> CursorState:
    """Return a cursor in the form that the interface shows."""
    return CursorState(
        name=cursor.name,
        after=None if cursor.after is None else cursor.after.hex(),
        version=cursor.version,
        data=cursor.data,
        updated_ms=cursor.updated_ms,
    )


def _index_key(topic: Topic) -> bytes:
    return RECORD_PREFIX + topic_prefix(topic.id) + _GENERATION.pack(topic.generation)


def _cursor_key(topic: Topic, name: str, incarnation: str) -> bytes:
    return _index_key(topic) + f"{name}\0{incarnation}".encode()


def _generation_of(prefix: bytes, key: bytes) -> int:
    generation: int = _GENERATION.unpack_from(key, len(prefix))[0]
    return generation


def _encode(cursor: StoredCursor) -> bytes:
    fields = {**shown(cursor), "before": cursor.before}
    del fields["name"]  # It is in the key.
    return json.dumps(fields, separators=(",", ":")).encode()


def _decoded(key: bytes, record: Record) -> dict[str, Any]:
    try:
        fields = json.loads(record.value)
    except ValueError as error:
        raise StorageCorrupt(f"the record {key!r} does not decode") from error
    if not isinstance(fields, dict):
        raise StorageCorrupt(f"the record {key!r} does not decode")
    return fields

"""Keep the records of topics: each has a topic's generation and properties, and tells whether it is deleted.

A record outlives its topic, so that the next generation of the name is higher. Its value is JSON::

    {"generation": 2, "deleted": false, "properties": {"ttl": "604800"}, "token": "…", "purged_ms": 1764000000000}

It also has the name of the principal that created the topic, ``owner``, if that is known.

Every write has a fresh token. So if the outcome of a write is unknown, a read of the record shows whether this write
or another one made it. If the store belongs to this process, it is the only writer, so it need not read a record twice. In a
cluster this module caches nothing: a topic's leader keeps the record that it read at its claim, and any other node
reads the record whenever it needs it.
"""

from __future__ import annotations

import json
import secrets
from bisect import insort
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Final, NamedTuple

from broker.errors import (
    OutcomeUnknown,
    StorageCorrupt,
    TopicExists,
    TopicNotFound,
    TopicRecreated,
    UnavailableError,
)
from broker.model import CHAIN, Topic, TopicId, TransactionUse
from broker.storage.keys import GENERATION_MAX, topic_prefix
from broker.storage.records import RecordStore
from broker.topics import reserved

RECORD_PREFIX = b"topic/"
_DELETED: Final = b'{"deleted":true,'
_LIVE: Final = b'{"deleted":false,'
PUT_TRIES_MAX = 8
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The memory for the properties of cached records, and again for those of topics in use."""
PROPERTY_BYTES: Final = 128
"""The memory of a property beside its name and value."""


class TopicRecord(NamedTuple):
    """A topic's record as stored."""

    generation: int
    deleted: bool
    properties: dict[str, str]
    token: str = ""
    purged_ms: int = 0
    """Messages published before this time are never read again. It only rises while the generation lives."""
    owner: str = ""
    """The principal that created this generation; empty: it is not known."""

    def topic(self, identifier: TopicId) -> Topic:
        """Return the live topic. Raises TopicNotFound if it was deleted."""
        if self.deleted:
            raise not_found(identifier)
        use = TransactionUse(self.properties.get("transactions", TransactionUse.OPTIONAL))
        ttl_s = int(self.properties["ttl"])
        return Topic(identifier, self.generation, self.properties, ttl_s, use, self.purged_ms)


def not_found(topic: TopicId) -> TopicNotFound:
    """Return the error for a topic that does not exist, in the words of the original TMS."""
    return TopicNotFound(f"Topic {topic} does not exist.")


def check_generation(topic: Topic, asked: int | None) -> None:
    """Raise TopicRecreated if a request names another generation than that of the topic; None: it names none."""
    if asked is not None and asked != topic.generation:
        raise TopicRecreated.between(topic.id, asked, topic.generation)


def _encode(record: TopicRecord) -> bytes:
    fields = record._asdict()
    if not record.owner:  # A record of the mode ``open`` stays as it was.
        del fields["owner"]
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _decode(key: bytes, value: bytes) -> TopicRecord:
    try:
        return TopicRecord(**json.loads(value))
    except (ValueError, TypeError) as error:
        raise StorageCorrupt(f"the record of topic {key!r} does not decode") from error


def _is_deleted(key: bytes, value: bytes) -> bool:
    """Return whether a record is of a deleted topic.

    The encoder sorts fields by name, so ``deleted`` comes first. Therefore this need not decode the record.
    """
    if value.startswith(_LIVE):
        return False
    return value.startswith(_DELETED) or _decode(key, value).deleted


def record_key(topic: TopicId) -> bytes:
    """Return the key of a topic's record."""
    return RECORD_PREFIX + topic_prefix(topic)


def memory_bytes(properties: Mapping[str, str]) -> int:
    """Return about how many bytes a topic's properties take in memory."""
    return sum(len(name) + len(value) + PROPERTY_BYTES for name, value in properties.items())


class TopicRegistry:
    """Topic records over a record store, cached."""

    def __init__(self, records: RecordStore, *, cached_max: int = 100_000) -> None:
        """Start with an empty cache. Over ``cached_max`` records, or RECORD_BYTES_MAX, it forgets the oldest ones.

        0 caches nothing.
        """
        self.records = records
        self._cached_max = cached_max
        self._cached: OrderedDict[TopicId, TopicRecord] = OrderedDict()
        self._cached_bytes = 0
        self._reads: dict[TopicId, object] = {}
        """The last read of each topic in progress, unless a put overlaps it: what such a read finds may be old."""

    async def read(self, topic: TopicId) -> TopicRecord | None:
        """Return the topic's record, also of a deleted topic; None if the name was never used."""
        record, _ = await self._fetch(topic)
        return record

    async def get(self, topic: TopicId) -> Topic:
        """Return a live topic. Raises TopicNotFound."""
        record = self._cached.get(topic) or await self.read(topic)
        if record is None:
            raise not_found(topic)
        return record.topic(topic)

    async def _fetch(self, topic: TopicId) -> tuple[TopicRecord | None, bytes | None]:
        mine = self._reads[topic] = object()
        try:
            found = await self.records.get(record_key(topic))
        finally:
            is_present = self._reads.get(topic) is mine
            if is_present:
                del self._reads[topic]
        if found is None:
            return None, None
        record = _decode(record_key(topic), found.value)
        if is_present:
            self._remember(topic, record)
        return record, found.version

    def _forget(self, topic: TopicId) -> None:
        self._drop(topic)
        self._reads.pop(topic, None)

    def _drop(self, topic: TopicId) -> None:
        record = self._cached.pop(topic, None)
        if record is not None:
            self._cached_bytes -= memory_bytes(record.properties)

    def _remember(self, topic: TopicId, record: TopicRecord) -> None:
        self._drop(topic)
        self._cached[topic] = record
        self._cached_bytes += memory_bytes(record.properties)
        while self._cached and (
            len(self._cached) > self._cached_max or self._cached_bytes > RECORD_BYTES_MAX
        ):
            self._drop(next(iter(self._cached)))

    async def create(self, topic: TopicId, properties: Mapping[str, str], owner: str = "") -> Topic:
        """Write the record of the name's next generation. Raises TopicExists, OutcomeUnknown."""

        def created(record: TopicRecord | None) -> TopicRecord:
            if record is not None and not record.deleted:
                raise TopicExists(f"Topic {topic} already exists.")
            generation = 1 if record is None else record.generation + 1
            assert generation <= GENERATION_MAX
            return TopicRecord(generation, False, dict(properties), owner=owner)

        return (await self._write(topic, created)).topic(topic)

    async def update(self, topic: TopicId, properties: Mapping[str, str]) -> Topic:
        """Replace the properties of a live topic, but keep its chain. If they are the same already, write nothing.

        Raises:
            TopicNotFound: there is no such topic.
            OutcomeUnknown: it may have been done.
        """

        def updated(record: TopicRecord | None) -> TopicRecord:
            if record is None or record.deleted:
                raise not_found(topic)
            kept = {CHAIN: record.properties[CHAIN]} if CHAIN in record.properties else {}
            return record._replace(properties={**properties, **kept})

        return (await self._write(topic, updated)).topic(topic)

    async def purge(self, topic: TopicId, generation: int, before_ms: int) -> Topic:
        """Raise the moment before which no message of a live topic may be read. A lower one changes nothing.

        Raises:
            TopicNotFound: there is no topic of this generation.
            OutcomeUnknown: it may have been done.
        """

        def purged(record: TopicRecord | None) -> TopicRecord:
            if record is None or record.deleted or record.generation != generation:
                raise not_found(topic)
            return record._replace(purged_ms=max(record.purged_ms, before_ms))

        return (await self._write(topic, purged)).topic(topic)

    async def delete(self, topic: TopicId, generation: int) -> None:
        """Mark one generation deleted. Do nothing if it is deleted already, or a later one exists."""

        def deleted(record: TopicRecord | None) -> TopicRecord:
            if record is None or record.deleted or record.generation != generation:
                raise not_found(topic)
            return record._replace(deleted=True)

        try:
            await self._write(topic, deleted)
        except TopicNotFound:
            return

    async def _write(
        self, topic: TopicId, change: Callable[[TopicRecord | None], TopicRecord]
    ) -> TopicRecord:
        """Put the record that ``change`` returns for the present one, once, unless the two are equal.

        Errors of ``change`` go to the caller.

        Raises:
            OutcomeUnknown: the record may have been put, and another change may have come after it.
        """
        token = secrets.token_hex(8)
        doubt = _Doubt(topic)
        for _ in range(PUT_TRIES_MAX):
            with doubt.kept():
                record, version = await self._fetch(topic)
                if record is not None and record.token == token:
                    return record
                doubt.check(version)
                changed = change(record)
                if changed == record:
                    return changed
                changed = changed._replace(token=token)
                try:
                    if await self._put(topic, version, changed):
                        return changed
                except OutcomeUnknown:
                    # The next read shows by the token whether this put made the record.
                    doubt.begin(version)
        raise OutcomeUnknown(f"Changing topic '{topic}' did not finish.")

    async def _put(self, topic: TopicId, version: bytes | None, record: TopicRecord) -> bool:
        # Until the put is confirmed, the stored value is unknown.
        self._forget(topic)
        try:
            put = await self.records.put_if(record_key(topic), version, _encode(record))
        finally:
            self._forget(topic)
        if put is None:
            return False
        self._remember(topic, record)
        return True

    async def names(self, namespace: str) -> AsyncGenerator[list[str], None]:
        """Yield the names of the live topics of a namespace, in the order of their row keys, some at a time."""
        prefix = RECORD_PREFIX + f"{namespace}:".encode()
        async with aclosing(self._live(prefix)) as pages:
            async for page in pages:
                yield [key[len(prefix) : -1].decode() for key in page]

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have a live topic, sorted, without the broker's own."""
        found: list[str] = []
        last = reserved.NAMESPACE
        async with aclosing(self._live(RECORD_PREFIX)) as pages:
            async for page in pages:
                for key in page:
                    # The keys of a namespace follow each other, and nearly in the order of names.
                    if (namespace := _topic_of(key).namespace) not in (last, reserved.NAMESPACE):
                        insort(found, namespace)
                        last = namespace
        return found

    async def _live(self, prefix: bytes) -> AsyncGenerator[list[bytes], None]:
        """Yield the keys of the records of live topics."""
        async with aclosing(self.records.pages(prefix)) as pages:
            async for page in pages:
                yield [key for key, record in page if not _is_deleted(key, record.value)]

    async def generations(self) -> AsyncGenerator[list[tuple[TopicId, int]], None]:
        """Yield all live topics with their generations, some at a time."""
        async with aclosing(self.records.pages(RECORD_PREFIX)) as pages:
            async for page in pages:
                yield [
                    (_topic_of(key), _decode(key, record.value).generation)
                    for key, record in page
                    if not _is_deleted(key, record.value)
                ]

    async def count_of(self, owner: str) -> int:
        """Return how many live topics a principal has created."""
        return sum(
            [
                not _is_deleted(key, record.value) and _decode(key, record.value).owner == owner
                async for page in self.records.pages(RECORD_PREFIX)
                for key, record in page
            ]
        )

    async def all(self) -> list[TopicId]:
        """Return all topics that have a record, also deleted ones."""
        found: list[TopicId] = []
        async with aclosing(self.records.pages(RECORD_PREFIX)) as pages:
            async for page in pages:
                found += [_topic_of(key) for key, _ in page]
        return found


class _Doubt:
    """A put with an unknown outcome. As long as the record keeps its version, the same put may be repeated.

    Once another put has changed the record, it is unknown whether this put came before. Then it must not be repeated,
    over a change that was acknowledged. It must not be reported as refused either.
    """

    def __init__(self, topic: TopicId) -> None:
        self._topic = topic
        self._version: bytes | None = None
        self._is_open = False

    def begin(self, version: bytes | None) -> None:
        """Note that a put over this version may have been done, or may still be done."""
        self._is_open, self._version = True, version

    def check(self, version: bytes | None) -> None:
        """Raise OutcomeUnknown if another put has changed the record since."""
        if self._is_open and version != self._version:
            raise self._unknown()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Turn a failed read, or a refused repeat, into OutcomeUnknown if the put may have been done."""
        try:
            yield
        except UnavailableError as error:
            if self._is_open:
                raise self._unknown() from error
            raise

    def _unknown(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"It is unknown whether topic '{self._topic}' was changed.")


def _topic_of(key: bytes) -> TopicId:
    namespace, topic, _ = key[len(RECORD_PREFIX) :].decode().split(":")
    return TopicId(namespace, topic)

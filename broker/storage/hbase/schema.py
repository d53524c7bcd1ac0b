"""The tables in HBase: their names, their required settings, and creating them.

::

    namespace:prefix + messages    each region has some salts       roots, pages and marks of topics
    namespace:prefix + payloads    the same                         payload logs
    namespace:prefix + records     one region                       topics, pins, claims

All rows of a topic lie in one region of each table, for ever. So a call with many rows goes to one server. For this,
the regions are created with the table, and never split or merge. Tables keep one version of each cell, because no
reader needs an older one. They have no time to live, because only the broker decides when data are removed.

An attribute of each table has the FORMAT of its data. A broker reads only its own format.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from broker.config.sections import REGIONS_MAX, Durability
from broker.errors import StorageCorrupt, Unavailable
from broker.storage.hbase import requests
from broker.storage.hbase.gateways import Gateways
from broker.storage.table import Space
from broker.turns import CallSubject

FORMAT: Final = b"5"
"""The format of the data. A broker reads no other."""
DEFAULT_NAMESPACE: Final = "default"
DURABILITIES: Final = {
    Durability.FSYNC: requests.FSYNC_WAL,
    Durability.FLUSHED: requests.SYNC_WAL,
}
_FORMAT_KEY = b"BROKER_FORMAT"
_FOREVER = 2_147_483_647
"""HBase's value for "no time to live"."""

# SPLIT_ENABLED prevents splits by the operator, and the policy prevents HBase's own.
_NEVER_SPLIT = {
    b"SPLIT_ENABLED": b"false",
    b"SPLIT_POLICY": b"org.apache.hadoop.hbase.regionserver.DisabledRegionSplitPolicy",
    b"MERGE_ENABLED": b"false",
}


class Schema(NamedTuple):
    """The names of the tables, their number of regions, and the durability of writes."""

    namespace: str = DEFAULT_NAMESPACE
    prefix: str = "broker_"
    durability: Durability = Durability.FSYNC
    regions: int = 16
    """The regions of messages and payloads. Calls take turns by them; a table with other regions does no harm."""

    def name_of(self, space: Space) -> str:
        """Return a table's full name."""
        name = self.prefix + space
        return name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}:{name}"

    def place_of(self, space: Space, row: bytes) -> CallSubject:
        """Return the region and the topic of a row."""
        if space is Space.RECORDS:
            return CallSubject(space)
        topic = _topic_prefix(row)
        return CallSubject(f"{space}/{bisect_right(splits_of(self.regions), _salt(topic))}", topic)


def salt_of(key: bytes) -> bytes:
    """Return the salt of a key that begins with ``ns:topic:``. Raises ValueError for any other."""
    return _salt(_topic_prefix(key))


def _topic_prefix(key: bytes) -> bytes:
    return key[: key.index(b":", key.index(b":") + 1) + 1]


@lru_cache(maxsize=4096)
def _salt(topic_prefix: bytes) -> bytes:
    return hashlib.blake2b(topic_prefix, digest_size=1).digest()


@lru_cache(maxsize=16)
def splits_of(regions: int) -> list[bytes]:
    """Return the first salt of each region of a table, without the first region."""
    return [bytes([REGIONS_MAX * i // regions]) for i in range(1, regions)]


class Made(NamedTuple):
    """The result of ``init`` for a namespace or a table. ``problems`` are wrong settings."""

    what: str
    name: str
    made: bool
    regions: int | None = None
    problems: tuple[str, ...] = ()


class HBaseAdmin:
    """Creates and checks the tables of a schema. All methods raise TableError."""

    def __init__(self, gateways: Gateways, schema: Schema) -> None:
        """Send calls through ``gateways``."""
        self._gateways = gateways
        self._schema = schema

    async def init(self, regions: int) -> list[Made]:
        """Create missing tables, with ``regions`` regions, and check the existing ones.

        After an error some tables may exist, or be created later. Calling it again is safe.
        """
        namespace = await self._make_namespace()
        tables = [
            await self._make_table(space, 1 if space is Space.RECORDS else regions)
            for space in Space
        ]
        return [namespace, *tables]

    async def check(self) -> None:
        """Check that all tables exist and have this format.

        Raises:
            Unavailable: a table is missing.
            StorageCorrupt: a table has another format.
        """
        there = {space: await self._exists(space) for space in Space}
        missing = [self._schema.name_of(space) for space in Space if not there[space]]
        for space in Space:
            if there[space]:
                descriptor = await self._call_for(space, "getTableDescriptor")
                for problem in _other_format(descriptor):
                    raise StorageCorrupt(f"The table {self._schema.name_of(space)} {problem}")
        if missing:
            raise Unavailable(
                f"HBase has no table {', '.join(missing)}. "
                "To create missing tables, run: broker storage init"
            )

    async def remove(self) -> None:
        """Remove the tables with all their data."""
        for space in Space:
            if await self._exists(space):
                await self._call_for(space, "disableTable")
                await self._call_for(space, "deleteTable")

    async def _make_namespace(self) -> Made:
        name = self._schema.namespace
        known = await self._ask(requests.LIST_NAMESPACES)
        if name.encode() not in known:
            await self._ask(requests.create_namespace(name.encode()))
        return Made("namespace", name, name.encode() not in known)

    async def _make_table(self, space: Space, regions: int) -> Made:
        exists = await self._exists(space)
        if not exists:
            durability = DURABILITIES[self._schema.durability]
            attributes = {**_NEVER_SPLIT, _FORMAT_KEY: FORMAT}
            names = self._names(space)
            await self._ask(
                requests.create_table(*names, attributes, durability, splits_of(regions))
            )
        descriptor = await self._call_for(space, "getTableDescriptor")
        name = self._schema.name_of(space)
        locations = await self._ask(requests.region_locations(name.encode()))
        problems = tuple(_problems(descriptor, DURABILITIES[self._schema.durability]))
        return Made("table", name, not exists, len(locations), problems)

    async def _exists(self, space: Space) -> bool:
        return bool(await self._call_for(space, "tableExists"))

    async def _call_for(self, space: Space, api: str) -> Any:
        return await self._ask(requests.of_table(api, *self._names(space)))

    async def _ask(self, request: bytes) -> Any:
        return await self._gateways.ask("admin", request)

    def _names(self, space: Space) -> tuple[bytes, bytes]:
        return self._schema.namespace.encode(), (self._schema.prefix + space).encode()


# A TTableDescriptor: its columns, attributes, durability; of a column its name, versions, life.
_COLUMNS, _ATTRIBUTES, _DURABILITY = 2, 3, 4
_NAME, _VERSIONS, _LIFE = 1, 10, 13


def _other_format(descriptor: Any) -> Iterator[str]:
    found = descriptor.get(_ATTRIBUTES, {}).get(_FORMAT_KEY)
    if found != FORMAT:
        named = "an unknown format" if found is None else f"format {found.decode(errors='replace')}"
        yield (
            f"holds data of {named}; this release reads only "
            f"format {FORMAT.decode()}. Run the release that wrote them, or choose another "
            "hbase_table_prefix and create new tables with: broker storage init"
        )


def _problems(descriptor: Any, durability: int) -> Iterator[str]:
    yield from _other_format(descriptor)
    attributes = descriptor.get(_ATTRIBUTES, {})
    for name, value in _NEVER_SPLIT.items():
        if attributes.get(name, b"").lower() != value.lower():
            yield f"{name.decode()} must be {value.decode()}"
    found = descriptor.get(_DURABILITY)
    if found != durability:
        yield f"its durability is {found}, but must be {durability} (TDurability)"
    families = {family[_NAME]: family for family in descriptor.get(_COLUMNS, ())}
    for name in (requests.HEADS, requests.ENTRIES):
        family = families.get(name)
        if family is None:
            yield f"it has no family {name.decode()}"
            continue
        if family.get(_VERSIONS) != 1:
            yield f"family {name.decode()} keeps {family.get(_VERSIONS)} versions of a cell, not 1"
        if family.get(_LIFE, _FOREVER) != _FOREVER:
            yield f"family {name.decode()} has a time to live of {family[_LIFE]} s; it must have none"

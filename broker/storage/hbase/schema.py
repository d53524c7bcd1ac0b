"""The tables in HBase: their names, how they must be, and making them.

::

    namespace:prefix + messages    a region for some salts each     roots, pages and marks of topics
    namespace:prefix + payloads    likewise                         payload logs
    namespace:prefix + records     one region                       topics, pins, claims

All of a topic lies in one region of each table, for ever: a call of many rows then goes to one server. So
regions are made with the table and never split or merge. One version of each cell, since nothing reads an
older one; no time to live, since the broker alone decides when something goes.

Each table says in an attribute which FORMAT its data have. A broker reads its own format alone.
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

FORMAT: Final = b"4"
"""1: a row for each message, in a family d. 2: pages."""
DEFAULT_NAMESPACE: Final = "default"
DURABILITIES: Final = {
    Durability.FSYNC: requests.FSYNC_WAL,
    Durability.FLUSHED: requests.SYNC_WAL,
}
_FORMAT_KEY = b"BROKER_FORMAT"
_FOREVER = 2_147_483_647
"""What HBase calls no time to live."""

# SPLIT_ENABLED stops the operator's splits, the policy HBase's own.
_NEVER_SPLIT = {
    b"SPLIT_ENABLED": b"false",
    b"SPLIT_POLICY": b"org.apache.hadoop.hbase.regionserver.DisabledRegionSplitPolicy",
    b"MERGE_ENABLED": b"false",
}


class Schema(NamedTuple):
    """Which tables are used, and when a write to them counts as done."""

    namespace: str = DEFAULT_NAMESPACE
    prefix: str = "broker_"
    durability: Durability = Durability.FSYNC
    regions: int = 16
    """Of the tables of topics. Calls are shared out by them; it does no harm if a table has others."""

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
    """Return with which salts a table's regions begin, but for the first."""
    return [bytes([REGIONS_MAX * i // regions]) for i in range(1, regions)]


class Made(NamedTuple):
    """What ``init`` did about a namespace or a table; ``problems``: what is not as it should be."""

    what: str
    name: str
    made: bool
    regions: int | None = None
    problems: tuple[str, ...] = ()


class HBaseAdmin:
    """Makes and looks at the tables of a schema. All methods raise TableError."""

    def __init__(self, gateways: Gateways, schema: Schema) -> None:
        """Ask through ``gateways``."""
        self._gateways = gateways
        self._schema = schema

    async def init(self, regions: int) -> list[Made]:
        """Make what is missing, with ``regions`` regions, and look at what is there.

        After an error some of it may have been made, or be made yet; asking again is safe.
        """
        namespace = await self._make_namespace()
        tables = [
            await self._make_table(space, 1 if space is Space.RECORDS else regions)
            for space in Space
        ]
        return [namespace, *tables]

    async def check(self) -> None:
        """Refuse tables that are not there, or whose data have another format.

        Raises:
            Unavailable: a table is missing.
            StorageCorrupt: this release can't read what is there.
        """
        there = {space: await self._exists(space) for space in Space}
        missing = [self._schema.name_of(space) for space in Space if not there[space]]
        for space in Space:
            if there[space]:
                told = await self._ask_of(space, "getTableDescriptor")
                for problem in _other_format(told):
                    raise StorageCorrupt(f"The table {self._schema.name_of(space)} {problem}")
        if missing:
            raise Unavailable(
                f"HBase has no table {', '.join(missing)}. "
                "Make what is missing with: broker storage init"
            )

    async def remove(self) -> None:
        """Remove the tables with all that is in them."""
        for space in Space:
            if await self._exists(space):
                await self._ask_of(space, "disableTable")
                await self._ask_of(space, "deleteTable")

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
        told = await self._ask_of(space, "getTableDescriptor")
        name = self._schema.name_of(space)
        locations = await self._ask(requests.region_locations(name.encode()))
        problems = tuple(_problems(told, DURABILITIES[self._schema.durability]))
        return Made("table", name, not exists, len(locations), problems)

    async def _exists(self, space: Space) -> bool:
        return bool(await self._ask_of(space, "tableExists"))

    async def _ask_of(self, space: Space, api: str) -> Any:
        return await self._ask(requests.of_table(api, *self._names(space)))

    async def _ask(self, request: bytes) -> Any:
        return await self._gateways.ask("admin", request)

    def _names(self, space: Space) -> tuple[bytes, bytes]:
        return self._schema.namespace.encode(), (self._schema.prefix + space).encode()


# A TTableDescriptor: its columns, attributes, durability; of a column its name, versions, life.
_COLUMNS, _ATTRIBUTES, _DURABILITY = 2, 3, 4
_NAME, _VERSIONS, _LIFE = 1, 10, 13


def _other_format(descriptor: Any) -> Iterator[str]:
    found = descriptor.get(_ATTRIBUTES, {}).get(_FORMAT_KEY, b"1")
    if found != FORMAT:
        yield (
            f"holds data of format {found.decode(errors='replace')}; this release reads format "
            f"{FORMAT.decode()} alone. Run the release that wrote them, or choose another "
            "hbase_table_prefix and make new tables with: broker storage init"
        )


def _problems(descriptor: Any, durability: int) -> Iterator[str]:
    yield from _other_format(descriptor)
    attributes = descriptor.get(_ATTRIBUTES, {})
    for name, value in _NEVER_SPLIT.items():
        if attributes.get(name, b"").lower() != value.lower():
            yield f"{name.decode()} must be {value.decode()}"
    found = descriptor.get(_DURABILITY)
    if found != durability:
        yield f"its durability is {found}, and must be {durability} (TDurability)"
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

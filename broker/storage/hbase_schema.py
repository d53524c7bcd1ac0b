"""The tables in HBase: their names, how they must be, and making them.

::

    namespace:prefix + messages    a region for some salts each     rows and control rows of topics
    namespace:prefix + payloads    likewise                         payload logs
    namespace:prefix + records     one region                       topics, pins, claims

All of a topic must lie in one region of each table, for ever: readers take what a put leaves for one step
of that region. So regions are made with the table and never split or merge. One version of each cell, since
timestamps are epochs here; no time to live, since HBase would take those timestamps for ages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from broker.config import REGIONS_MAX, Durability
from broker.storage.cells import Table
from broker.storage.hbase_gateways import IDL, Gateways
from broker.storage.hbase_requests import FAMILY
from broker.storage.hbase_table import DURABILITIES

RECORDS = "records"
DEFAULT_NAMESPACE = "default"
_FOREVER = 2_147_483_647
"""What HBase calls no time to live."""

# SPLIT_ENABLED stops the operator's splits, the policy HBase's own; a topic stays in one region.
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

    def name_of(self, table: str) -> str:
        """Return a table's full name."""
        name = self.prefix + table
        return name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}:{name}"

    @property
    def tables(self) -> list[str]:
        """The short names of all tables."""
        return [*(table.value for table in Table), RECORDS]


class Made(NamedTuple):
    """What ``init`` did about a namespace or a table; ``problems``: what is not as it should be."""

    what: str
    name: str
    made: bool
    regions: int | None = None
    problems: tuple[str, ...] = ()


class HBaseAdmin:
    """Makes and looks at the tables of a schema."""

    def __init__(self, gateways: Gateways, schema: Schema) -> None:
        """Ask through ``gateways``."""
        self._gateways = gateways
        self._schema = schema

    async def init(self, regions: int) -> list[Made]:
        """Make what is missing, with ``regions`` regions, and look at what is there.

        Raises:
            CellsError: some of it may have been made, or be made yet; asking again is safe.
        """
        namespace = await self._make_namespace()
        tables = [
            await self._make_table(table, 1 if table == RECORDS else regions)
            for table in self._schema.tables
        ]
        return [namespace, *tables]

    async def _make_namespace(self) -> Made:
        name = self._schema.namespace
        known = await self._gateways.call("admin", lambda client: client.listNamespaces())
        if name not in known:
            wanted = IDL.TNamespaceDescriptor(name=name)
            await self._gateways.call("admin", lambda client: client.createNamespace(wanted))
        return Made("namespace", name, name not in known)

    async def _make_table(self, table: str, regions: int) -> Made:
        exists = await self.exists(table)
        if not exists:
            descriptor = self._descriptor(table)
            splits = [bytes([REGIONS_MAX * i // regions]) for i in range(1, regions)]
            await self._gateways.call(
                "admin", lambda client: client.createTable(descriptor, splits)
            )
        found, problems = await self._look(table)
        return Made("table", self._schema.name_of(table), not exists, found, problems)

    async def _look(self, table: str) -> tuple[int, tuple[str, ...]]:
        name, qualified = self._schema.name_of(table).encode(), self._qualified(table)
        descriptor = await self._gateways.call(
            "admin", lambda client: client.getTableDescriptor(qualified)
        )
        locations = await self._gateways.call(
            "admin", lambda client: client.getAllRegionLocations(name)
        )
        wanted = DURABILITIES[self._schema.durability]
        return len(locations), tuple(_problems(descriptor, wanted))

    async def exists(self, table: str) -> bool:
        """Return whether there is such a table. Raises CellsError."""
        qualified = self._qualified(table)
        found = await self._gateways.call("admin", lambda client: client.tableExists(qualified))
        return bool(found)

    async def missing(self) -> list[str]:
        """Return the full names of the tables that are not there. Raises CellsError."""
        return [
            self._schema.name_of(table)
            for table in self._schema.tables
            if not await self.exists(table)
        ]

    async def remove(self) -> None:
        """Remove the tables with all that is in them. Raises CellsError."""
        for table in self._schema.tables:
            if await self.exists(table):
                await self._remove(self._qualified(table))

    async def _remove(self, name: Any) -> None:
        await self._gateways.call("admin", lambda client: client.disableTable(name))
        await self._gateways.call("admin", lambda client: client.deleteTable(name))

    def _qualified(self, table: str) -> Any:
        namespace = self._schema.namespace.encode()
        return IDL.TTableName(ns=namespace, qualifier=(self._schema.prefix + table).encode())

    def _descriptor(self, table: str) -> Any:
        family = IDL.TColumnFamilyDescriptor(name=FAMILY, maxVersions=1)
        return IDL.TTableDescriptor(
            tableName=self._qualified(table),
            columns=[family],
            attributes=_NEVER_SPLIT,
            durability=DURABILITIES[self._schema.durability],
        )


def _problems(descriptor: Any, durability: int) -> Iterator[str]:
    attributes = descriptor.attributes or {}
    for name, value in _NEVER_SPLIT.items():
        if attributes.get(name, b"").lower() != value.lower():
            yield f"{name.decode()} must be {value.decode()}"
    if descriptor.durability != durability:
        yield f"its durability is {descriptor.durability}, and must be {durability} (TDurability)"
    families = {family.name: family for family in descriptor.columns or ()}
    family = families.get(FAMILY)
    if family is None:
        yield "it has no family d"
        return
    if family.maxVersions != 1:
        yield f"family d keeps {family.maxVersions} versions of a cell, and must keep 1"
    if family.timeToLive not in (None, _FOREVER):
        yield f"family d has a time to live ({family.timeToLive} s), and must have none"

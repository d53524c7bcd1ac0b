"""HBase as a node uses it: its gateways, the log store and the record store, by the configuration."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from broker.clock import Clock
from broker.config import HBaseConfig, parse_address
from broker.errors import Unavailable
from broker.storage.cells import CellsError
from broker.storage.hbase_cells import HBaseCells
from broker.storage.hbase_gateways import CALL_S, Address, Ended, Gateways
from broker.storage.hbase_records import HBaseRecordStore
from broker.storage.hbase_schema import HBaseAdmin, Made, Schema
from broker.storage.ports import LogStore, RecordStore
from broker.storage.retrying import Retrying
from broker.storage.tables import TableLogStore

Observe = Callable[[Ended], None]


class HBase(NamedTuple):
    """The stores of one cluster. ``close`` ends both, after what is under way."""

    logs: LogStore
    records: RecordStore
    close: Callable[[], Awaitable[None]]


async def open_hbase(config: HBaseConfig, clock: Clock, observe: Observe | None = None) -> HBase:
    """Open the stores; ``observe`` is told of each call to a gateway as it ends.

    Raises:
        Unavailable: no gateway answers, or the tables are not there.
    """
    gateways = _gateways(config, observe)
    schema = schema_of(config)
    retrying = Retrying(clock, config.hbase_call_s, random.Random())  # noqa: S311  Spread only.
    try:
        missing = await retrying.read(HBaseAdmin(gateways, schema).missing)
        _demand(missing)
    except BaseException:
        await gateways.close()
        raise
    logs = TableLogStore(HBaseCells(gateways, schema), clock, call_s=config.hbase_call_s)
    records = HBaseRecordStore(gateways, schema, clock, call_s=config.hbase_call_s)
    return HBase(logs, records, gateways.close)


async def init_hbase(config: HBaseConfig) -> list[Made]:
    """Make the namespace and the tables that are not there; say of each what was done.

    Raises:
        Unavailable: HBase does not do it; asking again is safe.
    """
    gateways = _gateways(config, None)
    try:
        return await HBaseAdmin(gateways, schema_of(config)).init(config.hbase_regions)
    except CellsError as error:
        raise Unavailable(f"HBase did not make the tables: {error}.") from error
    finally:
        await gateways.close()


def _demand(missing: list[str]) -> None:
    if missing:
        raise Unavailable(
            f"HBase has no table {', '.join(missing)}. Make what is missing with: broker storage init"
        )


def schema_of(config: HBaseConfig) -> Schema:
    """Return which tables a configuration means."""
    return Schema(config.hbase_namespace, config.hbase_table_prefix, config.durability)


def _gateways(config: HBaseConfig, observe: Observe | None) -> Gateways:
    return Gateways(
        [Address(*parse_address(each)) for each in config.hbase_gateways],
        connections_max=config.hbase_connections_max,
        call_s=min(CALL_S, config.hbase_call_s),
        connect_s=config.hbase_connect_s,
        idle_s=config.hbase_idle_s,
        observe=observe,
    )

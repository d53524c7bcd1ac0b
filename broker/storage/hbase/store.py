"""Opening HBase for a node: the table from the configuration, and creating its tables in HBase."""

from __future__ import annotations

import random
from collections.abc import Callable

from broker import retries
from broker.clock import Clock
from broker.config.sections import HBaseConfig
from broker.config.text_forms import parse_address
from broker.errors import Unavailable
from broker.storage.call_health import CallOutcome
from broker.storage.hbase.gateways import CALL_S, GatewayAddress, Gateways, TlsSource
from broker.storage.hbase.schema import HBaseAdmin, Made, Schema
from broker.storage.hbase.table import HBaseTable
from broker.storage.table import TableError

Observe = Callable[[CallOutcome], None]
PAUSE_S = 0.25


async def open_hbase(
    config: HBaseConfig,
    clock: Clock,
    observe: Observe | None = None,
    *,
    tls: TlsSource = lambda: None,
) -> HBaseTable:
    """Open the table of all spaces; ``observe`` is called with each call to a gateway as it ends.

    ``tls`` returns the context for new connections.

    Raises:
        Unavailable: no gateway answers within ``hbase_call_s``, or a table is missing in HBase.
        StorageCorrupt: a table in HBase has another format.
    """
    gateways = _gateways(config, observe, tls)
    schema = schema_of(config)
    deadline = clock.monotonic() + config.hbase_call_s

    def pause_s(error: Exception, _: int) -> float | None:
        if not isinstance(error, TableError) or clock.monotonic() >= deadline:
            return None
        return random.uniform(0.5 * PAUSE_S, 1.5 * PAUSE_S)  # noqa: S311 - Jitter is no secret.

    try:
        await retries.repeat(HBaseAdmin(gateways, schema).check, pause_s, clock.sleep)
        return HBaseTable(gateways, schema)
    except TableError as error:
        await gateways.close()
        raise Unavailable(f"HBase does not answer: {error}.") from error
    except BaseException:
        await gateways.close()
        raise


async def init_hbase(config: HBaseConfig, tls: TlsSource = lambda: None) -> list[Made]:
    """Create the namespace and the tables that are missing; return what was done for each.

    Raises:
        Unavailable: HBase did not create them; calling it again is safe.
    """
    gateways = _gateways(config, None, tls)
    try:
        return await HBaseAdmin(gateways, schema_of(config)).init(config.hbase_regions)
    except TableError as error:
        raise Unavailable(f"HBase did not create the tables: {error}.") from error
    finally:
        await gateways.close()


def schema_of(config: HBaseConfig) -> Schema:
    """Return the schema for a configuration."""
    return Schema(
        config.hbase_namespace, config.hbase_table_prefix, config.durability, config.hbase_regions
    )


def _gateways(config: HBaseConfig, observe: Observe | None, tls: TlsSource) -> Gateways:
    return Gateways(
        [GatewayAddress(*parse_address(each)) for each in config.hbase_gateways],
        connections_max=config.hbase_connections_max,
        call_s=min(CALL_S, config.hbase_call_s),
        connect_s=config.hbase_connect_s,
        idle_s=config.hbase_idle_s,
        observe=observe,
        tls=tls,
    )

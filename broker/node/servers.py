"""The servers that a node of a cluster connects to: HBase's gateways and ZooKeeper.

This is a separate module, because its imports need the extra ``cluster``. A standalone node and a simulation never
import it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.clock import Clock
from broker.config.sections import Config
from broker.coordination import zookeeper
from broker.coordination.coordinator import TreeCoordinator
from broker.node.cluster import Stores
from broker.storage.call_health import CallOutcome
from broker.storage.hbase.store import open_hbase
from broker.storage.log import Logs
from broker.storage.records import Records


class ConfiguredServers:
    """HBase and ZooKeeper at the configured addresses."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Keep the configuration. Connect to no server yet."""
        self._config = config
        self._clock = clock

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open HBase's tables.

        Raises:
            Unavailable: no gateway answers, or the tables do not exist.
        """
        hbase = self._config.hbase
        table = await open_hbase(hbase, self._clock, on_call_end)
        logs = Logs(table, self._clock, call_s=hbase.hbase_call_s)
        return Stores(logs, Records(logs.resolver), table.close)

    async def coordinator(self) -> TreeCoordinator:
        """Connect to ZooKeeper. Raises Unavailable."""
        cluster = self._config.cluster
        return await zookeeper.connect(
            cluster.zookeeper_hosts,
            root=cluster.zookeeper_root,
            session_timeout_ms=cluster.session_timeout_ms,
            clock=self._clock,
        )

"""Open a node's stores and its coordinator: those of this process, or those of servers.

A node alone has a LevelDB, which only one process can open, and coordinates with itself over a tree in memory. A node of
a cluster connects to HBase's gateways and to ZooKeeper. Their imports need the extra ``cluster``, so only such a node
does them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from broker import logs
from broker.clock import Clock
from broker.config.sections import Compression, Config
from broker.coordination.coordinator import TreeCoordinator
from broker.coordination.memory import MemoryCoordination
from broker.errors import Unavailable, install_command
from broker.metrics import Metrics
from broker.node.ground import Servers, Stores
from broker.node.tls_files import Certificates
from broker.storage.call_health import CallOutcome
from broker.storage.leveldb import files
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.leveldb.write_thread import Observe
from broker.storage.log import Logs
from broker.storage.records import Records

OPENING_LOG_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
"""A lost data directory stops the node at most about this long after the loss. A write finds it at once."""

log = logs.get_logger()


def configured_servers(
    config: Config, clock: Clock, metrics: Metrics, certificates: Certificates
) -> Servers:
    """Return the servers that the configuration names; connect to none yet. Raises Unavailable: an extra is missing."""
    if not config.cluster.is_on:
        return OwnServers(config, clock, metrics)
    try:
        import broker.coordination.zookeeper  # noqa: PLC0415
        import broker.storage.hbase.store  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"A node of a cluster needs the package {error.name!r}: {install_command('cluster')}"
        ) from error
    return ClusterServers(config, clock, certificates)


class ClusterServers:
    """HBase and ZooKeeper at the configured addresses."""

    def __init__(self, config: Config, clock: Clock, certificates: Certificates) -> None:
        """Keep the configuration."""
        self._config = config
        self._clock = clock
        self._certificates = certificates

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open HBase's tables. Raises Unavailable: no gateway answers, or the tables do not exist."""
        from broker.storage.hbase.store import open_hbase  # noqa: PLC0415

        hbase = self._config.hbase
        table = await open_hbase(
            hbase, self._clock, on_call_end, tls=lambda: self._certificates.hbase
        )
        store = Logs(table, self._clock, call_s=hbase.hbase_call_s)
        return Stores(store, Records(store.resolver), table.close)

    async def coordinator(self) -> TreeCoordinator:
        """Connect to ZooKeeper. Raises Unavailable."""
        from broker.coordination import zookeeper  # noqa: PLC0415

        cluster = self._config.cluster
        return await zookeeper.connect(
            cluster.zookeeper_hosts,
            root=cluster.zookeeper_root,
            session_timeout_ms=cluster.session_timeout_ms,
            clock=self._clock,
            tls=self._config.tls,
        )


class OwnServers:
    """A LevelDB and a coordinator in this process."""

    def __init__(self, config: Config, clock: Clock, metrics: Metrics) -> None:
        """Keep the parts."""
        self._config = config
        self._clock = clock
        self._metrics = metrics

    async def stores(self, on_call_end: Callable[[CallOutcome], None]) -> Stores:
        """Open the LevelDB, and watch its directory. Raises as ``open_store``."""
        del on_call_end  # There is no server to call.
        synced = self._metrics.synced
        table = await open_store(self._config, lambda seconds, _: synced.observe(seconds))
        store = Logs(table, self._clock)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        closing = threading.Event()

        def failure() -> str | None:
            error = table.failure
            return None if error is None else f"storage does not take writes: {error}"

        async def close() -> None:
            closing.set()
            await table.close()

        # A daemon thread of its own: a disk that hangs must not hold up the end of the process.
        watch = threading.Thread(
            target=_watch, args=(table, lost, closing), name="data directory", daemon=True
        )
        watch.start()
        return Stores(store, Records(store.resolver), close, failure, lost)

    async def coordinator(self) -> TreeCoordinator:
        """Begin the only session with a tree in memory."""
        return MemoryCoordination(self._clock).session()


def _watch(table: LevelDBTable, lost: asyncio.Future[str], closing: threading.Event) -> None:
    """Tell if the data directory is removed, replaced or unmounted. Runs in a thread."""
    while not closing.wait(LOOK_EVERY_S):
        reason = table.loss()
        if reason is not None and not closing.is_set():
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                lost.get_loop().call_soon_threadsafe(_lose, lost, reason)
            return


def _lose(lost: asyncio.Future[str], reason: str) -> None:
    log.error("data directory lost", reason=reason)
    lost.set_result(
        f"{reason}. Messages that were stored in it are lost with it, unless you put it back"
    )


async def open_store(config: Config, observe: Observe | None = None) -> LevelDBTable:
    """Open the configured store. ``observe`` is called after each synced write, in the writer's thread.

    After a crash LevelDB first reads its log back, at most about twice the write buffer. A busy or failing disk can
    make this slow. So while the store is being opened, a log line says so every few seconds.
    """
    storage = config.storage
    directory = Path(storage.data_dir)
    options = Options(
        write_buffer_bytes=storage.write_buffer_bytes,
        compression=None if storage.compression is Compression.NONE else storage.compression.value,
        cache_bytes=storage.block_cache_bytes,
        open_files_max=storage.open_files_max,
        probe_interval_s=storage.probe_interval_s,
    )

    began = asyncio.get_running_loop().time()
    facts = {"data_dir": str(directory), "log_bytes": files.recovery_bytes(directory)}
    log.info("opening store", **facts)
    opening = asyncio.ensure_future(open_table(directory, options, observe=observe))
    while not (await asyncio.wait((opening,), timeout=OPENING_LOG_EVERY_S))[0]:
        seconds = round(asyncio.get_running_loop().time() - began)
        log.warning("store is still being opened", **facts, seconds=seconds)
    table = opening.result()
    if table.failure is not None:
        log.warning(
            "the disk is full: the node serves reads alone until there is space",
            data_dir=str(directory),
            error=str(table.failure),
        )
    if not files.is_private(directory):
        log.warning(
            "other users may read the store: make its directory the broker's own, with mode 0700",
            data_dir=str(directory),
        )
    return table

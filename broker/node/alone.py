"""The ground of a standalone node: a LevelDB table, without other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from broker import logs
from broker.clock import Clock
from broker.config.sections import Compression, Config
from broker.coordination.claims import Written
from broker.coordination.tenure import EVERYTHING, Tenure
from broker.metrics import Metrics
from broker.storage.leveldb import files
from broker.storage.leveldb.database import Options
from broker.storage.leveldb.table import LevelDBTable, open_table
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.topics.topics import Topics
from broker.transactions.service import Transactions

OPENING_LOG_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
"""A lost data directory stops the node at most about this long after the loss. A write finds it at once."""

log = logs.get_logger()


class Alone:
    """The ground of a standalone node: LevelDB, without other nodes."""

    instance = None
    tenure: Tenure = EVERYTHING

    def __init__(self, config: Config, metrics: Metrics, clock: Clock) -> None:
        """Keep the parts. Nothing is opened before ``open``."""
        self.owner = secrets.token_hex(8)
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._table: LevelDBTable | None = None
        self._logs: Logs | None = None
        self._closing = threading.Event()

    async def open(self, url: str) -> None:
        """Open the store. Raises the errors of ``open_store``."""
        del url
        self._table = await open_store(self._config, self._metrics.synced)
        self._logs = Logs(self._table, self._clock)
        # A daemon thread of its own: a disk that hangs must not hold up the end of the process.
        watch = partial(self._watch, self._table, asyncio.get_running_loop())
        threading.Thread(target=watch, name="data directory", daemon=True).start()

    def _watch(self, table: LevelDBTable, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the node if its data directory is removed, replaced or unmounted."""
        while not self._closing.wait(LOOK_EVERY_S):
            reason = table.loss()
            if reason is not None and not self._closing.is_set():
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(self._lost, reason)
                return

    def _lost(self, reason: str) -> None:
        log.error("data directory lost", reason=reason)
        if not self.stopped.done():
            self.stopped.set_result(
                f"{reason}. Messages that were stored in it are lost with it, unless you put it back"
            )

    @property
    def logs(self) -> Logs:
        """The logs of the one table."""
        assert self._logs is not None, "not opened"
        return self._logs

    @property
    def records(self) -> Records:
        """The records of the one table."""
        return Records(self.logs.resolver)

    def serve(self, topics: Topics) -> None:
        """Return None: there is no cluster."""

    def routed(self, topics: Topics, deadline_s: float) -> None:
        """Return None: there is no other node to forward requests to."""

    def transactions(self, local: Transactions, deadline_s: float) -> Transactions:
        """Return the node's own service."""
        del deadline_s
        return local

    def failure(self) -> str | None:
        """Return why the store takes no writes; None if it takes them."""
        if self._table is None or self._table.failure is None:
            return None
        return f"storage does not take writes: {self._table.failure}"

    def skewed(self, skew_ms: int) -> None:
        """Do nothing: there is no other clock."""

    async def other_clocks(self) -> Sequence[Written]:
        """Return none: there are no other nodes."""
        return ()

    async def leave(self, seconds: float, *, waits_s: float) -> None:
        """Do nothing: there is no other node to hand topics over to."""

    async def close(self) -> None:
        """Close the store."""
        self._closing.set()
        if self._table is not None:
            await self._table.close()


async def open_store(
    config: Config, observe: Callable[[float], None] | None = None
) -> LevelDBTable:
    """Open the configured store. ``observe`` gets the seconds of each synced write.

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

    def synced(seconds: float, _: int) -> None:
        if observe is not None:
            observe(seconds)

    began = asyncio.get_running_loop().time()
    facts = {"data_dir": str(directory), "log_bytes": files.recovery_bytes(directory)}
    log.info("opening store", **facts)
    opening = asyncio.ensure_future(open_table(directory, options, observe=synced))
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

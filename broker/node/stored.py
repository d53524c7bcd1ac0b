"""A store that is read or made beside a node, also while a broker serves it: a data directory, or a cluster's in HBase."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from broker.clock import SystemClock
from broker.config.sections import Config
from broker.model import TopicId
from broker.node.servers import open_store
from broker.node.tls_files import Certificates
from broker.storage.check import verify
from broker.storage.keys import LogId
from broker.storage.leveldb.directory_repair import opened_copy, verify_directory
from broker.storage.log import Logs
from broker.storage.report import CheckReport, Tell
from broker.storage.shown_log import ShownLog, shown


class Store(NamedTuple):
    """The store of a configuration. Its methods raise the errors of a store, and ModuleNotFoundError without HBase's packages."""

    config: Config
    is_directory: bool

    @classmethod
    def of(cls, config: Config, directory: Path | None) -> Self:
        """Return the store in a directory; without one, that of the configuration."""
        if directory is not None:
            config = replace(config, storage=replace(config.storage, data_dir=directory))
        return cls(config, directory is not None or not config.hbase.hbase_gateways)

    async def make(self) -> None:
        """Make an empty data directory."""
        await (await open_store(self.config)).close()

    async def verify(self, tell: Tell) -> CheckReport:
        """Read the whole store, and report each problem."""
        window_ms = int(self.config.topics.idempotency_window_s * 1000)
        if self.is_directory:
            return await verify_directory(self.config.storage.data_dir, tell, window_ms=window_ms)
        async with self._opened() as logs:
            return await verify(logs, tell, window_ms=window_ms)

    async def show(
        self,
        topic: TopicId,
        *,
        number: int | None,
        generation: int,
        pages_max: int,
        entries_max: int,
    ) -> ShownLog:
        """Return a topic, or its payload log ``number``, as it is stored; generation 0: the last one."""
        async with self._opened() as logs:
            if number is not None and not generation:
                root = await logs.root(LogId(topic, 0))
                generation = 0 if root is None else root.generation
            log = LogId(topic, generation, number)
            return await shown(logs.resolver, log, pages_max=pages_max, entries_max=entries_max)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Logs]:
        if self.is_directory:
            async with opened_copy(self.config.storage.data_dir) as table:
                yield Logs(table, SystemClock())
            return
        from broker.storage.hbase.store import open_hbase  # noqa: PLC0415 - An extra.

        certificates = Certificates(self.config.tls)
        opened = await open_hbase(self.config.hbase, SystemClock(), tls=lambda: certificates.hbase)
        try:
            yield Logs(opened, SystemClock())
        finally:
            await opened.close()

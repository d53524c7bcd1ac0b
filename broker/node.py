"""A node: the one file that names concrete classes and wires them.

::

    configuration ─▶ LevelDB store ─▶ topics ─▶ handlers ─▶ listener
                     clock ─────────▶   ▲
                                     sweeper

A standalone node leads every topic. It starts by opening its store, which no second process can, and
stops in the order in which it promised things: it takes nothing new, finishes what is under way, hands
its logs off, and closes the store last.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from broker import __version__, guards, logs
from broker.api.dispatch import Dispatch
from broker.api.health import Health
from broker.api.openapi import document
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.api.shell import Shell
from broker.clock import Clock, SystemClock
from broker.config import Config
from broker.metrics import Metrics
from broker.storage.leveldb import Options
from broker.storage.leveldb_store import LevelDBStore
from broker.topics.retention import Sweeper, SweepReport
from broker.topics.service import Topics
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings

STANDALONE = "standalone"
STEADY_CHECK_S = 1.0
FILES_BESIDE_CONNECTIONS = 1500
"""The database's tables, its log, and some."""

log = logs.get_logger()


def topic_settings(config: Config) -> TopicSettings:
    """Return what the configuration says of topics."""
    limits, topics, sweep = config.limits, config.topics, config.sweep
    return TopicSettings(
        transaction_life_max_s=topics.transaction_life_max_s,
        id_lead_ms_max=topics.id_lead_ms_max,
        queued_requests_max=limits.queued_requests_max,
        queued_bytes_max=limits.queued_bytes_max,
        idempotency_window_ms=int(topics.idempotency_window_s * 1000),
        idempotency_keys_max=limits.idempotency_keys_max,
        poll_chunk_bytes=limits.poll_chunk_bytes,
        poll_messages_max=limits.poll_messages_max,
        waiting_polls_max=limits.waiting_polls_max,
        cache_bytes_max=topics.cache_bytes_max,
        sweep_margin_ms=int(sweep.sweep_margin_s * 1000),
        sweep_rows_max=sweep.sweep_rows_max,
    )


class Node:
    """A standalone broker in this process. ``start`` it, ``stop`` it; once each."""

    def __init__(self, config: Config, *, clock: Clock | None = None) -> None:
        """Keep the configuration; nothing is opened before ``start``."""
        self.config = config
        self.clock = clock or SystemClock()
        self.metrics = Metrics(STANDALONE, config.metrics.metrics_topics, process=True)
        self._store: LevelDBStore | None = None
        self._topics: Topics | None = None
        self._shell: Shell | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Open the store and listen.

        Raises:
            Unavailable: another process has the store.
            StorageCorrupt: the store is damaged.
            OSError: the address can't be had.
        """
        config = self.config
        self._store = await open_store(config, self.metrics.synced)
        around = Surroundings(
            self._store,
            self.clock,
            topic_settings(config),
            owner=secrets.token_hex(8),
            metrics=self.metrics,
        )
        self._topics = Topics(around, self._store)
        health = Health(
            version=__version__,
            not_ready=self._not_ready,
            metrics=self.metrics.render,
            openapi=document,
        )
        router = Router(make_routes(self._topics, config, health))
        self._shell = Shell(Dispatch(router, self.metrics), config, self.clock)
        self._watch(self._topics, around, self._shell)
        try:
            await self._shell.start(config.server.host, config.server.port)
        except OSError:
            await self._store.close()
            raise
        self._sweeping = asyncio.create_task(self._sweep_forever(Sweeper(self._topics.leaders)))
        self._announce()

    @property
    def url(self) -> str:
        """Where the node listens."""
        assert self._shell is not None, "not started"
        host = self.config.server.host
        reachable = "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - Compared only.
        return (
            f"http://[{reachable}]:{self.port}"
            if ":" in reachable
            else f"http://{reachable}:{self.port}"
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._shell is not None, "not started"
        return self._shell.port

    async def stop(self) -> None:
        """Finish what is under way, hand off, close."""
        self._stopping = True
        log.info("node draining")
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._topics is not None:
            self._topics.begin_drain()
        if self._shell is not None:
            await self._shell.close()
        if self._topics is not None:
            await self._topics.close()
        if self._store is not None:
            await self._store.close()
        log.info("node stopped")

    async def sweep(self) -> SweepReport:
        """Sweep every topic now."""
        assert self._topics is not None, "not started"
        return await Sweeper(self._topics.leaders).sweep()

    def _not_ready(self) -> str | None:
        if self._stopping:
            return "it is stopping"
        if self._store is not None and self._store.failure is not None:
            return f"storage does not take writes: {self._store.failure}"
        return None

    def _announce(self) -> None:
        log.info("node started", url=self.url, data_dir=str(self.config.storage.data_dir))
        if not _is_loopback(self.config.server.host):
            log.warning(
                "listening beyond loopback without access control: "
                "whoever reaches this port may do everything",
                host=self.config.server.host,
            )
        if guards.switched_off():
            log.warning("guards switched off", guards=sorted(guards.switched_off()))

    def _watch(self, topics: Topics, around: Surroundings, shell: Shell) -> None:
        watch = self.metrics.watch
        watch("cache_bytes", "Recent messages in memory.", lambda: around.cache.bytes)
        watch("waiting_polls", "Polls and streams that wait.", lambda: topics.waiting_polls)
        watch("queued_bytes", "Publishes that wait for a commit.", lambda: around.queue.bytes)
        watch("connections", "Open connections.", lambda: shell.connections)
        watch("requests_under_way", "Requests being answered.", lambda: shell.busy)

    async def _sweep_forever(self, sweeper: Sweeper) -> None:
        settings = self.config.sweep
        while True:
            await self.clock.sleep(settings.sweep_interval_s)
            if self.clock.steady_ms() < settings.sweep_rest_s * 1000:
                continue
            try:
                report = await sweeper.sweep()
            except Exception:  # The sweeper must outlive any one sweep.
                log.exception("sweep failed")
                continue
            self.metrics.swept("expired", report.rows)
            if report.rows or report.skipped:
                log.info("swept", rows=report.rows, topics=report.topics, skipped=report.skipped)


async def open_store(
    config: Config, observe: Callable[[float], None] | None = None
) -> LevelDBStore:
    """Open the configured store; ``observe`` is told the seconds of each synced write."""
    storage = config.storage
    options = Options(
        write_buffer_bytes=storage.write_buffer_bytes,
        cache_bytes=storage.block_cache_bytes,
        open_files_max=storage.open_files_max,
        probe_interval_s=storage.probe_interval_s,
    )

    def synced(seconds: float, _: int) -> None:
        if observe is not None:
            observe(seconds)

    return await LevelDBStore.open(Path(storage.data_dir), options, observe=synced)


async def sweep_store(config: Config) -> SweepReport:
    """Sweep the configured store, which no node serves. Raises as ``open_store`` does."""
    store = await open_store(config)
    try:
        owner, metrics = secrets.token_hex(8), Metrics(STANDALONE)
        settings = topic_settings(config)
        around = Surroundings(store, SystemClock(), settings, owner=owner, metrics=metrics)
        topics = Topics(around, store)
        report = await Sweeper(topics.leaders).sweep()
        await topics.close()
    finally:
        await store.close()
    return report


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; a line on standard output says where."""
    node = Node(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await node.start()
    _say(f"broker ready at {node.url}")
    await stop.wait()
    await node.stop()


def _say(line: str) -> None:
    # Whoever started us may have closed the pipe; serving does not depend on being heard.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


def serve(config: Config) -> None:
    """Serve in this process until a signal, under uvloop. Raises as Node.start does."""
    import uvloop  # noqa: PLC0415 - Only whoever serves needs it.

    with logs.writing(config.logs):
        _allow_files(config.server.connections_max + FILES_BESIDE_CONNECTIONS)
        uvloop.run(run(config))


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to what its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("fewer open files are allowed than may be needed", wanted=wanted, limit=allowed)

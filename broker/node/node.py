"""A node: the broker's parts, connected.

::

    configuration ─▶ ground ─▶ topics ─▶ handlers ─▶ listener
                     clock ──▶   ▲
                              sweeper

The *ground* has the storage, and the node's place among the nodes of its cluster (ground.py). A node first listens, so no
other one can have its address; clients that connect before it has started wait.

A stopping node hands its topics over, takes no new requests, finishes or forwards the current ones, and closes the
store last.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import logs
from broker.access.access_records import AccessRecords
from broker.api.dispatch import Dispatch
from broker.api.routed import OwnService
from broker.api.router import Router
from broker.api.routes import make_routes
from broker.clock import Clock, SystemClock
from broker.config.sections import AccessMode, Config
from broker.config.text_forms import is_loopback
from broker.http.server import Server, listen_at
from broker.metrics import Metrics
from broker.node.ground import Ground
from broker.node.known_callers import KnownCallers, known_callers
from broker.node.servers import configured_servers, open_store
from broker.node.tls_files import Certificates
from broker.node.transactions import (
    ServiceElsewhere,
    asked_service,
    serve_tephra,
    settings_of,
    sweep_source,
)
from broker.storage.leveldb.files import is_store
from broker.storage.log import Logs
from broker.storage.records import Records
from broker.topics.retention import Sweeper, SweepReport
from broker.topics.settings import TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics
from broker.transactions.service import Transactions
from broker.transactions.service_calls import AskedService

if TYPE_CHECKING:
    from broker.transactions.tephra_server import TephraServer

STANDALONE = "standalone"
"""The label of a node alone in its metrics."""
CLOSE_TOPICS_S_MIN = 1.0
"""The time in which a stopping node may close its topics, even if its last requests used up the time of the drain."""

log = logs.get_logger()


MakeGround = Callable[[Config, Clock, Metrics], Ground]


class Node:
    """A broker in this process. Call ``start`` and ``stop`` once each."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        ground: MakeGround | None = None,
        listen: Callable[[str, int], socket.socket] | None = None,
    ) -> None:
        """Keep the configuration. Nothing is opened before ``start``.

        ``ground`` and ``listen`` are for simulations, which replace the ground and the network.
        """
        self.config = config
        self.clock = clock or SystemClock()
        self._make_ground = ground or _configured_ground
        self._listen = listen or listen_at
        self.metrics = Metrics(_name_of(config), config.metrics.metrics_topics, process=True)
        self._ground: Ground | None = None
        self._topics: Topics | None = None
        self._transactions: Transactions | None = None
        self._service: AskedService | None = None
        self._server: Server | None = None
        self._tephra: TephraServer | None = None
        self._listening: socket.socket | None = None
        self._callers: KnownCallers | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Open the ground and listen. After an error nothing is open.

        Raises:
            Unavailable: another process has the store, or HBase or ZooKeeper does not answer.
            StorageCorrupt: the store is damaged.
            OSError: the address is not free.
        """
        try:
            await self._start()
        except BaseException:
            if self._listening is not None:
                self._listening.close()
            if self._tephra is not None:
                await self._tephra.close(0)
            if self._callers is not None:
                await self._callers.close()
            if self._ground is not None:
                await self._ground.close()
            raise

    async def _start(self) -> None:
        config = self.config
        host, port = config.server.host, config.server.port
        self._listening = listening = self._listen(host, port)
        self._ground = ground = self._make_ground(config, self.clock, self.metrics)
        await ground.open(config.cluster.advertised_url or self.url)
        around = Surroundings(
            ground.logs,
            self.clock,
            TopicSettings.of(config),
            owner=ground.owner,
            instance=ground.instance,
            tenure=ground.tenure,
            skewed=ground.skewed,
            other_clocks=ground.other_clocks,
            metrics=self.metrics,
        )
        self._topics = topics = Topics(around, ground.records)
        view = ground.serve(topics)
        routed = ground.routed(topics, config.server.request_deadline_s)
        transactions = Transactions(topics.leaders, settings_of(config))
        self._transactions = transactions
        transactions.watch(self.metrics)
        own = OwnService(transactions, routed)
        self._service = service = asked_service(config, self.clock, own)
        access = AccessRecords(ground.records, self.clock)
        callers = await known_callers(config.access, access, ground.membership, self.clock)
        self._callers = callers
        routes = make_routes(
            topics,
            config,
            view,
            routed,
            transactions,
            not_ready=self._not_ready,
            service=service,
            access=access,
            meter=callers.meter,
        )
        dispatch = Dispatch(
            Router(routes),
            self.metrics,
            config,
            gate=callers.gate,
            meter=callers.meter,
            receiving=routed.receiving,
        )
        server = Server(dispatch, config, self.clock)
        server.tls = ground.certificates.listener
        if config.transactions.thrift_port is not None:
            serving = OwnService(transactions, routed, deadline_s=config.server.request_deadline_s)
            self._tephra = await serve_tephra(
                config, serving, server, self.metrics, self.clock, callers.gate
            )
        await server.start(host, port, listening)
        self._server = server
        ground.certificates.on_change(self._use_certificates)
        self._watch(topics, around, server)
        sweeper = Sweeper(topics.leaders, sweep_source(service, topics.registry))
        self._sweeping = asyncio.create_task(self._sweep_forever(sweeper))
        self._announce()

    def _use_certificates(self) -> None:
        """Let the listeners use the present certificates for new connections."""
        assert self._ground is not None, "not started"
        for listener in (self._server, self._tephra):
            if listener is not None:
                listener.tls = self._ground.certificates.listener

    def reload_certificates(self) -> None:
        """Read the files of TLS again if they have changed."""
        if self._ground is not None:
            self._ground.certificates.reload()

    @property
    def stopped(self) -> asyncio.Future[str]:
        """Done, with the reason, once this node must stop."""
        assert self._ground is not None, "not started"
        return self._ground.stopped

    @property
    def url(self) -> str:
        """The URL at which the node listens."""
        host = self.config.server.host
        every = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - Compared only.
        reachable = every.get(host, host)
        shown = f"[{reachable}]" if ":" in reachable else reachable
        scheme = "https" if self.config.tls.is_on else "http"
        return f"{scheme}://{shown}:{self.port}"

    @property
    def port(self) -> int:
        """The port on which the node listens."""
        if self._server is not None:
            return self._server.port
        assert self._listening is not None, "not started"
        port: int = self._listening.getsockname()[1]
        return port

    @property
    def thrift_port(self) -> int | None:
        """The port of Tephra's Thrift service; None if there is none."""
        return None if self._tephra is None else self._tephra.port

    async def stop(self) -> None:
        """Hand the topics over, finish the current requests, and close all parts."""
        self._stopping = True
        log.info("node draining")
        drain_s = self.config.server.drain_s
        deadline = self.clock.monotonic() + drain_s
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._ground is not None and self._server is not None:
            # From here on every reply closes its connection, so that clients go to other nodes.
            self._server.begin_drain()
            await self._ground.leave(drain_s / 2, waits_s=drain_s * 3 / 4)
        if self._topics is not None:
            self._topics.begin_drain()
        await self._close_listeners(deadline)
        if self._transactions is not None:
            await self._transactions.close()
        if self._topics is not None:
            await self._close_topics(
                self._topics, max(deadline - self.clock.monotonic(), CLOSE_TOPICS_S_MIN)
            )
        if self._callers is not None:
            await self._callers.close()
        if self._ground is not None:
            await self._ground.close()
        log.info("node stopped")

    async def _close_listeners(self, deadline: float) -> None:
        left_s = max(deadline - self.clock.monotonic(), 0.0)
        listeners = (self._tephra, self._server)
        closing = [each.close(left_s) for each in listeners if each is not None]
        if isinstance(self._service, ServiceElsewhere):
            closing.append(self._service.close())  # Requests that wait for it end, too.
        await asyncio.gather(*closing)

    async def _close_topics(self, topics: Topics, seconds: float) -> None:
        """Close the topics. Wait at most ``seconds`` for storage on other machines, which may not answer."""
        closing = asyncio.ensure_future(topics.close())
        await asyncio.wait((closing,), timeout=None if topics.around.is_alone else seconds)
        if closing.done():
            closing.result()
            return
        # The logs' heads still name this node. The next leader fences it, as after a crash.
        log.warning("topics were not closed: storage does not answer", seconds=round(seconds, 1))
        closing.cancel()

    async def sweep(self) -> SweepReport:
        """Sweep every topic now."""
        assert self._topics is not None, "not started"
        assert self._service is not None, "not started"
        source = sweep_source(self._service, self._topics.registry)
        return await _swept(Sweeper(self._topics.leaders, source))

    def _not_ready(self) -> str | None:
        if self._stopping:
            return "it is stopping"
        return None if self._ground is None else self._ground.failure()

    def _announce(self) -> None:
        where = {} if self.config.cluster.is_on else {"data_dir": str(self.config.storage.data_dir)}
        log.info("node started", url=self.url, **where)
        is_open = self.config.access.access_mode is not AccessMode.REQUIRED
        if is_open and not is_loopback(self.config.server.host):
            log.warning(
                "listening beyond loopback with access_mode = open: "
                "any client that reaches this port may do everything",
                host=self.config.server.host,
            )

    def _watch(self, topics: Topics, around: Surroundings, server: Server) -> None:
        budgets, tephra, watch = server.budgets, self._tephra, self.metrics.watch
        watch("cache_bytes", "Recent messages in memory.", lambda: around.cache.bytes)
        watch("waiting_polls", "Polls and streams that wait.", lambda: topics.waiting_polls)
        ahead = "Topics whose new ids are ahead of the clock."
        watch("ids_ahead_topics", ahead, lambda: len(around.ids_ahead))
        watch("gaps_passed", "Times that a reader passed lost messages.", lambda: around.gaps.count)
        watch("queued_bytes", "Publishes that wait for a commit.", lambda: around.queue.bytes)
        watch("connections", "Open connections.", lambda: server.connections)
        count = "Open connections of Tephra's clients."
        watch("thrift_connections", count, lambda: 0 if tephra is None else len(tephra.open))
        watch("budget_held", "Held of each budget.", lambda: budgets.used, "budget")
        refused = "Requests refused or cut for each budget."
        watch("budget_refused_total", refused, lambda: budgets.refused, "budget")
        watch("requests_under_way", "Requests being answered.", lambda: server.busy)

    async def _sweep_forever(self, sweeper: Sweeper) -> None:
        try:
            await self._sweep_at_intervals(sweeper)
        finally:
            await sweeper.close()

    async def _sweep_at_intervals(self, sweeper: Sweeper) -> None:
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
            self.metrics.swept.add("expired", report.rows)
            self.metrics.swept.add("invalid", report.inverted)
            if report.rows or report.inverted or report.skipped:
                log.info("swept", **_report_fields(report))


async def _swept(sweeper: Sweeper) -> SweepReport:
    """Sweep once, and leave nothing under way."""
    try:
        return await sweeper.sweep()
    finally:
        await sweeper.close()


def _report_fields(report: SweepReport) -> dict[str, int | str]:
    fields: dict[str, int | str] = {
        "rows": report.rows,
        "topics": report.topics,
        "inverted": report.inverted,
        "skipped": report.skipped,
    }
    if report.problem is not None:
        fields["problem"] = report.problem
    return fields


def _name_of(config: Config) -> str:
    """Return the label of the node in its metrics."""
    if not config.cluster.is_on:
        return STANDALONE
    return config.cluster.advertised_url or f"{config.server.host}:{config.server.port}"


def _configured_ground(config: Config, clock: Clock, metrics: Metrics) -> Ground:
    """Return the configured ground. Raises Unavailable."""
    certificates = Certificates(config.tls)
    servers = configured_servers(config, clock, metrics, certificates)
    return Ground(config, clock, metrics, servers, certificates)


async def sweep_store(config: Config) -> SweepReport:
    """Sweep the configured store while no node serves it.

    Raises the errors of ``open_store``. Raises FileNotFoundError if there is no store, and creates none.
    """
    if not is_store(config.storage.data_dir):
        raise FileNotFoundError(f"there is no store in {config.storage.data_dir}")
    store = await open_store(config)
    clock = SystemClock()
    logs_of_store = Logs(store, clock)
    try:
        owner, metrics = secrets.token_hex(8), Metrics(STANDALONE)
        settings = TopicSettings.of(config)
        around = Surroundings(logs_of_store, clock, settings, owner=owner, metrics=metrics)
        topics = Topics(around, Records(logs_of_store.resolver))
        try:
            return await _swept(Sweeper(topics.leaders))
        finally:
            await topics.close()
    finally:
        await store.close()

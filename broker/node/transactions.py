"""A node's transaction service: for its own parts, and for Tephra's clients on a port of its own.

The node's parts ask the service of the node, of its cluster, or one at another address. Tephra's Thrift service needs the
extra ``tephra``: its packages are imported only if a node starts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from broker import logs
from broker.access.gate import AccessGate
from broker.api.routed import DEADLINE_S, OwnService
from broker.client import Client
from broker.client.outcomes import UNREACHED
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import BrokerError, NotFound, OutcomeUnknown, Unavailable, install_command
from broker.http.server import Server, listen_at
from broker.metrics import Metrics
from broker.model import Snapshot
from broker.operations.table import BY_NAME
from broker.topics.inversion import Source
from broker.topics.overdue import in_time
from broker.topics.registry import TopicRegistry
from broker.topics.reserved import TRANSACTIONS
from broker.transactions.service_calls import AskedService, ServiceCall
from broker.transactions.service_settings import TransactionSettings

if TYPE_CHECKING:
    from broker.transactions.tephra_server import TephraServer

CLOSE_S: Final = 1.0
"""How long a node that stops waits for calls of a service elsewhere, which may be away."""

log = logs.get_logger()


class ServiceElsewhere(AskedService):
    """A service at another address, over HTTP. Call ``close`` at the end.

    A call ends at its request's ``deadline``, and after DEADLINE_S at the latest. Its errors name the service.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        """Call the service at ``url``. It may list several nodes, with commas between them."""
        self._clock = clock
        self._url = url
        self._client = Client(url, deadline_s=DEADLINE_S)
        self._service = self._client.transactions
        self._under_way: set[asyncio.Future[None]] = set()

    @override
    async def ask(self, call: ServiceCall) -> Any:
        """Answer the calls of this node's parts. Raises OutcomeUnknown at the deadline of a truncation."""
        service = self._service
        reading = BY_NAME[call.name].effect.is_reading
        async with self._asked(call.deadline, Unavailable if reading else OutcomeUnknown):
            if call.name == "transactions_snapshot":
                return await service.snapshot()
            if call.name == "list_transactions":
                return await service.list(limit=call.limit)
            if call.name == "show_transaction":
                return await service.show(call.of)
            assert call.name == "truncate_transactions", "no part of a node calls this"
            return {"removed": await service.truncate(ids=call.sent["ids"])}

    @asynccontextmanager
    async def _asked(self, deadline: float | None, late: type[BrokerError]) -> AsyncIterator[None]:
        """Bound a call by its request's deadline; it raises ``late`` then."""
        ended = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            async with in_time(self._clock, deadline, lambda: late("it did not answer in time.")):
                yield
        except BrokerError as error:
            why = error.message.removeprefix(UNREACHED)
            error.message = f"The transaction service at {self._url}: {why}"
            raise
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def close(self) -> None:
        """Wait a little for the calls in progress, end them, and close the connections: the stop is not the service's."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_S)
        await self._client.close()


def asked_service(config: Config, clock: Clock, own: OwnService) -> AskedService:
    """Return the service that the configuration names; ``own`` is that of this node's cluster."""
    url = config.transactions.transactions_url
    return own if url is None else ServiceElsewhere(url, clock)


def sweep_source(service: AskedService, registry: TopicRegistry) -> Source:
    """Return the source of snapshots for sweeps. It does not start this broker's own service if that was never used."""
    if isinstance(service, ServiceElsewhere):
        return service.snapshot

    async def snapshot() -> Snapshot:
        if await registry.read(TRANSACTIONS) is None:
            raise NotFound("No transaction was ever begun.")
        return await service.snapshot()

    return snapshot


def settings_of(config: Config) -> TransactionSettings:
    """Return the settings of the service in a configuration."""
    own = config.transactions
    return TransactionSettings(
        timeout_default_s=own.transaction_timeout_default_s,
        timeout_max_s=own.transaction_timeout_max_s,
        long_timeout_default_s=own.long_transaction_timeout_default_s,
        long_timeout_max_s=config.topics.transaction_life_max_s,
        in_progress_max=own.transactions_in_progress_max,
        changes_max=own.transaction_changes_max,
        changes_bytes_max=own.transaction_changes_bytes_max,
        change_sets_bytes_max=own.change_sets_bytes_max,
        client_characters_max=own.transaction_client_characters_max,
        sweep_interval_s=own.transaction_sweep_interval_s,
        snapshot_edits=own.journal_snapshot_edits,
        snapshot_bytes=own.journal_snapshot_bytes,
        request_deadline_s=config.server.request_deadline_s,
    )


async def serve_tephra(
    config: Config,
    transactions: AskedService,
    listener: Server,
    metrics: Metrics,
    clock: Clock,
    guard: AccessGate,
) -> TephraServer:
    """Listen on the port that the configuration names, with the budgets and the TLS of the node's ``listener``.

    Raises:
        Unavailable: a package that it needs is not installed.
        OSError: the address is not free.
    """
    port = config.transactions.thrift_port
    assert port is not None, "the configuration names no port"
    try:
        from broker.transactions.tephra_frames import Most  # noqa: PLC0415 - See there.
        from broker.transactions.tephra_server import TephraServer  # noqa: PLC0415
        from broker.transactions.tephra_service import TephraBounds  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"transactions.thrift_port needs the package {error.name!r}: {install_command('tephra')}"
        ) from error
    own = config.transactions
    most = Most(keys=own.transaction_changes_max, key_bytes=own.transaction_changes_bytes_max)
    bounds = TephraBounds(config.server.request_deadline_s, most, own.transactions_reset_allowed)
    server = TephraServer(transactions, listener.budgets, metrics, clock, bounds, guard)
    server.tls = listener.tls
    host = config.server.host
    await server.start(host, port, listen_at(host, port))
    log.info("thrift service started", host=config.server.host, port=server.port)
    return server

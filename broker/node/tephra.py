"""Start Tephra's Thrift service on a port of a node, if the configuration names one.

The imports of the service need the extra ``tephra``. So this module imports them only if a node starts the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import logs
from broker.clock import Clock
from broker.config.sections import Config
from broker.errors import Unavailable, install_command
from broker.http.budget import Budgets
from broker.http.server import listen_at
from broker.metrics import Metrics

if TYPE_CHECKING:
    from broker.transactions.tephra_server import TephraServer
    from broker.transactions.tephra_service import Serving

log = logs.get_logger()


async def serve_tephra(
    config: Config,
    transactions: Serving,
    budgets: Budgets,
    metrics: Metrics,
    clock: Clock,
) -> TephraServer:
    """Listen on the port that the configuration names.

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
    server = TephraServer(transactions, budgets, metrics, clock, bounds)
    host = config.server.host
    await server.start(host, port, listen_at(host, port))
    log.info("thrift service started", host=config.server.host, port=server.port)
    return server

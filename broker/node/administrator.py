"""Make the first administrator, in a store that no caller can administrate yet."""

from __future__ import annotations

from broker.access.access_records import AccessRecords
from broker.access.grants import Grant
from broker.clock import SystemClock
from broker.config.sections import Config
from broker.errors import TaskFailed
from broker.metrics import Metrics
from broker.node.servers import configured_servers
from broker.node.tls_files import Certificates
from broker.operations.operation import Action


async def make_administrator(config: Config, principal: str, *, again: bool = False) -> str:
    """Grant ``admin`` to a principal, and return a new token of it. ``again``: although there is an administrator.

    A cluster may be serving its store meanwhile. A data directory may not be served.

    Raises:
        TaskFailed: there is an administrator already.
        Unavailable: the store does not answer, or a broker serves it.
    """
    clock = SystemClock()
    servers = configured_servers(config, clock, Metrics("init"), Certificates(config.tls))
    stores = await servers.stores(lambda _: None)
    try:
        access = AccessRecords(stores.records, clock)
        grants = (await access.stored()).grants.all()
        known = sorted({each.who for each in grants if each.allows(Action.ACCESS, None)})
        if known and not again:
            raise TaskFailed(
                f"there is an administrator already: {', '.join(known)}. If its token is lost, make another one "
                "with --again"
            )
        await access.grant(Grant(principal, "admin"))
        text, _ = await access.create_token(principal)
        return text
    finally:
        await stores.close()

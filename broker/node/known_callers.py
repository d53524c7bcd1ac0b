"""How a node knows its callers, and bounds what they use: its gate and its meter, as the configuration says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from broker.access.access_records import AccessRecords
from broker.access.configured import required_gate
from broker.access.gate import AccessGate, OpenGate
from broker.access.issuer_keys import IssuerKeys
from broker.access.meter import Meter
from broker.clock import Clock
from broker.config.access_section import AccessConfig, AccessMode
from broker.coordination.ports import Membership


@dataclass(frozen=True)
class KnownCallers:
    """The gate and the meter. ``followed`` is what they read again and again."""

    gate: AccessGate
    meter: Meter | None = None
    followed: Sequence[AccessRecords | IssuerKeys] = ()

    async def close(self) -> None:
        """Stop reading."""
        await asyncio.gather(*(each.close() for each in self.followed))


async def known_callers(
    config: AccessConfig, access: AccessRecords, membership: Membership, clock: Clock
) -> KnownCallers:
    """Return the gate of the configured mode, and the meter of quotas. Raises Unavailable."""
    if config.access_mode is not AccessMode.REQUIRED:
        return KnownCallers(OpenGate())
    gate, keys = required_gate(config, access.rules, clock)
    await access.open()
    if keys is not None:
        keys.open()
    meter = Meter(lambda: access.rules().quotas, clock, lambda: len(membership.members.nodes))
    return KnownCallers(gate, meter, [access] if keys is None else [access, keys])

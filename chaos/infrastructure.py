"""The HBase and ZooKeeper of a proxied cluster, for workloads that use them directly.

The verifier's own requests go to the true addresses. Each process that it starts has its own proxies, like a
node, so that a partition can cut it off alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.changing_cluster import ChangingCluster
from chaos.links import Link
from chaos.proxies import Wiring
from chaos.rowlog_processor import ProcessorMember


class ChaosBeneath:
    """The HBase and ZooKeeper of one cluster; implements ``workloads.workload.Beneath``."""

    def __init__(
        self, cluster: ChangingCluster, folder: Path, wiring: Wiring, where: Mapping[Link, str]
    ) -> None:
        """Begin for a cluster that runs in ``folder``; ``where`` has the addresses of the proxies."""
        self._cluster = cluster
        self._folder = folder
        self._wiring = wiring
        self._where = where

    @property
    def gateways(self) -> Sequence[str]:
        """Return the addresses of HBase's Thrift-2 gateways."""
        return [self._wiring.upstreams[name] for name in self._wiring.gateways]

    @property
    def zookeepers(self) -> Sequence[str]:
        """Return the addresses of the nodes' ZooKeeper."""
        return [self._wiring.upstreams[name] for name in self._wiring.zookeepers]

    async def begin(
        self, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> Mapping[str, Path]:
        """Start the rowlog processors, in place of earlier ones. Raises ServerFailed."""
        members = {
            name: ProcessorMember(
                name,
                self._folder,
                {**given, **self._wiring.beneath(name, self._where)},
                halted,
            )
            for name in self._wiring.processors
        }
        for member in members.values():
            await asyncio.to_thread(self._cluster.join, member)
        return {name: member.log_path for name, member in members.items()}

    async def end(self) -> None:
        """End the rowlog processors."""
        for name in self._wiring.processors:
            await asyncio.to_thread(self._cluster.leave, name)

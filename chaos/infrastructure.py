"""HBase and ZooKeeper of a proxied cluster, for workloads that use them without a node.

What the verifier asks itself goes to the true addresses; each process that it starts has proxies of its own, as a
node has, so that it can be cut off alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.local import LocalCluster
from chaos.links import Link
from chaos.proxies import Wiring
from chaos.rowlog_processor import ProcessorMember


class ChaosBeneath:
    """What is below the nodes of one cluster; implements ``workloads.stage.Beneath``."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, wiring: Wiring, where: Mapping[Link, str]
    ) -> None:
        """Belong to a cluster that runs in ``folder``; ``where`` each proxy listens."""
        self._cluster = cluster
        self._folder = folder
        self._wiring = wiring
        self._where = where

    @property
    def gateways(self) -> Sequence[str]:
        """The addresses of HBase's Thrift-2 gateways."""
        return [self._wiring.upstreams[name] for name in self._wiring.gateways]

    @property
    def zookeepers(self) -> Sequence[str]:
        """The addresses of the nodes' ZooKeeper."""
        return [self._wiring.upstreams[name] for name in self._wiring.zookeepers]

    async def begin(
        self, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> Mapping[str, Path]:
        """Start the processes, in place of those before. Raises ServerFailed."""
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
        """End the processes."""
        for name in self._wiring.processors:
            await asyncio.to_thread(self._cluster.leave, name)

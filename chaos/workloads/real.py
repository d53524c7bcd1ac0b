"""The surroundings in real time: the real client calls a running cluster over sockets."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from broker.client import Client
from broker.clock import Clock, SystemClock
from chaos.history import History
from chaos.workloads.workload import REAL, Beneath, Scale

CONNECT_S = 2.0


class RealSurroundings:
    """The surroundings of a workload on a running cluster, given the addresses of its nodes.

    Args:
        nodes: the addresses, at least one.
        seed: the seed of all random choices.
        scale: the amount of work.
        history: the history to write; a new one by default.
        beneath: the HBase and ZooKeeper of the nodes.
        settings: settings of all clients, which a process may override.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        seed: int,
        scale: Scale = REAL,
        history: History | None = None,
        beneath: Beneath | None = None,
        **settings: Any,
    ) -> None:
        self.nodes: Sequence[str] = list(nodes)
        self.scale = scale
        self.beneath = beneath
        self.chance = random.Random(seed)
        self.clock: Clock = SystemClock()
        self.history = history or History(time.monotonic_ns)
        self._settings = {"connect_timeout_s": CONNECT_S, **settings}

    def client(self, process: str, *, node: str | None = None, **settings: Any) -> Client:
        """Return a new client of the cluster, or of one node."""
        del process  # All processes reach the cluster the same way.
        options = {**self._settings, **settings}
        if node is not None:
            return Client(node, follow_leaders=False, **options)
        first = self.chance.randrange(len(self.nodes))
        return Client([*self.nodes[first:], *self.nodes[:first]], **options)

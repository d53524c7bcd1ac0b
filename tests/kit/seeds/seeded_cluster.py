"""The simulated cluster as a workload's surroundings: workloads run on it, and faults act on it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from broker.storage.memory.adversary import CALM, Bias
from broker.storage.ownpage import PageBounds
from broker.testing.simulation.cluster import PAGES, SimCluster
from chaos.checkers import Violation
from chaos.history import History
from chaos.workloads.workload import SIMULATED, Scale


class SeededCluster(SimCluster):
    """A simulated cluster on which workloads run (see chaos/workloads/workload.py).

    Attributes:
        scale: the size and pace of the workload.
        chance: the source of the workload's random choices.
        history: the calls of clients and the nemesis.
        wrong: violations that faults found and that no client can see.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        seed: int | str = 0,
        bias: Bias = CALM,
        scale: Scale = SIMULATED,
        settings: Mapping[str, Any] | None = None,
        bounds: PageBounds = PAGES,
    ) -> None:
        """Make ``nodes`` machines, not started yet; ``seed`` decides all random choices."""
        super().__init__(
            nodes=nodes,
            seed=seed,
            bias=bias,
            settings=settings,
            bounds=bounds,
            deadline_s=scale.deadline_s,
        )
        self.scale = scale
        self.chance = random.Random(f"{seed}/workload")
        self.history = History(lambda: round(self.loop.time() * 1e9))
        self.wrong: list[Violation] = []

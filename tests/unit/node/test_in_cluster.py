"""The end of a node of a cluster whose servers do not answer."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.clock import SystemClock
from broker.config.sections import Config
from broker.metrics import Metrics
from broker.node import cluster
from broker.node.cluster import InCluster

SAID = "left without releasing leases: ZooKeeper does not answer"


class Server:
    """Records its close. A silent server never completes it."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.done: list[str] = []

    async def close(self) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        self.done.append("closed")

    async def leave(self) -> None:
        await self.close()


def opened(ground: InCluster, *, silent: str) -> dict[str, Server]:
    names = ("peers", "tenure", "membership", "coordinator", "stores")
    parts = {name: Server(silent=name == silent) for name in names}
    ground._opened = cast("Any", SimpleNamespace(**parts))
    ground._coordinator = cast("Any", parts["coordinator"])
    ground._stores = cast("Any", parts["stores"])
    return parts


@pytest.mark.parametrize("silent", ["tenure", "membership", ""])
async def test_a_node_ends_though_zookeeper_does_not_take_its_leave(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    monkeypatch.setattr(cluster, "PART_S", 0.05 if silent else 30.0)
    ground = InCluster(Config(), SystemClock(), Metrics("0"), cast("Any", None))
    parts = opened(ground, silent=silent)
    with capture_logs() as lines:
        async with asyncio.timeout(30):
            await ground.close()
    assert {name for name in parts if not parts[name].done} <= {silent, "membership"}
    assert parts["coordinator"].done, "closed all the same"
    assert parts["stores"].done, "closed all the same"
    assert (SAID in [line["event"] for line in lines]) == bool(silent)
    assert bool(parts["membership"].done) == (not silent)

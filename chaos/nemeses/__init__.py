"""The nemeses by name. Each is one kind of fault, in a small module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from chaos.links import PAIRS
from chaos.nemeses import slow
from chaos.nemeses.beneath import GatewayKill, RegionMove, RegionServer, ZooKeeperLeader
from chaos.nemeses.churn import Churn, LeaderMoves
from chaos.nemeses.disk import FlippedBit, FullDisk, PowerCut
from chaos.nemeses.drop import Drop
from chaos.nemeses.kill import Kill
from chaos.nemeses.loss import Loss
from chaos.nemeses.membership import MembershipChanges, Twin
from chaos.nemeses.partition import Partition
from chaos.nemeses.pause import Pause
from chaos.nemeses.restart import Restart
from chaos.nemeses.session_loss import SessionLoss, Wipe
from chaos.nemeses.slow import SlowLinks
from chaos.nemeses.wall_clocks import HOUR_S, ClockStep, Skew, Strobe
from chaos.nemesis import Make, Nemesis

NEMESES: Final[Mapping[str, Make]] = {
    "kill": Kill,
    "restart": Restart,
    "pause": Pause,
    "partition": Partition,
    **{f"partition-{pair}": partial(Partition, pair) for pair in PAIRS},
    "latency": partial(SlowLinks, "latency", slow.latency),
    "jitter": partial(SlowLinks, "jitter", slow.jitter),
    "bandwidth": partial(SlowLinks, "bandwidth", slow.bandwidth),
    "reset": partial(SlowLinks, "reset", slow.reset),
    "slow-close": partial(SlowLinks, "slow-close", slow.slow_close),
    "slices": partial(SlowLinks, "slices", slow.slices),
    "drop": Drop,
    "loss": Loss,
    "clock-back": partial(ClockStep, "clock-back", -10.0),
    "clock-forward": partial(ClockStep, "clock-forward", HOUR_S),
    "clock-skew": Skew,
    "clock-strobe": Strobe,
    "zookeeper-leader": ZooKeeperLeader,
    "zookeeper-wipe": Wipe,
    "session": SessionLoss,
    "region-server": RegionServer,
    "gateway": GatewayKill,
    "region-move": RegionMove,
    "membership": MembershipChanges,
    "twin": Twin,
    "power-cut": partial(PowerCut, "power-cut", torn=False),
    "torn-tail": partial(PowerCut, "torn-tail", torn=True),
    "disk-full": FullDisk,
    "flipped-bit": FlippedBit,
    "churn": Churn,
    "leaders": LeaderMoves,
}
"""The nemeses' constructors, by their names on the command line."""

GROUPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("clock-back", "clock-forward", "clock-skew", "clock-strobe"), "clocks"),
    **dict.fromkeys(("membership", "twin"), "spare node"),
    **dict.fromkeys(("zookeeper-leader", "zookeeper-wipe"), "ZooKeeper"),
    **dict.fromkeys(("latency", "jitter"), "latency"),
    **dict.fromkeys(("power-cut", "torn-tail", "flipped-bit", "disk-full"), "disk"),
}
"""Groups of nemeses that would undo each other. A window has at most one of each group."""

__all__ = ["GROUPS", "NEMESES", "Make", "Nemesis"]

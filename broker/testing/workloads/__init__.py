"""Workloads: what applications do to a cluster, for simulation and verifier alike (see ``stage``)."""

from broker.testing.workloads.bounce import BounceWorkload
from broker.testing.workloads.log import LogWorkload
from broker.testing.workloads.metadata import MetadataWorkload
from broker.testing.workloads.rowlog import RowLogWorkload
from broker.testing.workloads.stage import REAL, REGISTRY, SIMULATED, Scale, Stage, Workload
from broker.testing.workloads.topics import TopicsWorkload
from broker.testing.workloads.transactions import OwnTransactionsWorkload, TransactionsWorkload

REGISTRY.update(
    {
        "log": LogWorkload,
        "transactions": TransactionsWorkload,
        "own-transactions": OwnTransactionsWorkload,
        "bounce": BounceWorkload,
        "topics": TopicsWorkload,
        "metadata": MetadataWorkload,
        "rowlog": RowLogWorkload,
    }
)
BENEATH = frozenset({"rowlog"})
"""They use HBase and ZooKeeper themselves, so they need a cluster of which these can be reached."""

__all__ = ["BENEATH", "REAL", "REGISTRY", "SIMULATED", "Scale", "Stage", "Workload"]

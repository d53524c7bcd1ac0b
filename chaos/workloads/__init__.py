"""Workloads: the requests of applications to a cluster, for the simulation and the verifier (see ``workload``)."""

from chaos.workloads.bounce import BounceWorkload
from chaos.workloads.log import LogWorkload
from chaos.workloads.metadata import MetadataWorkload
from chaos.workloads.rowlog import RowLogWorkload
from chaos.workloads.topics import TopicsWorkload
from chaos.workloads.transactions import OwnTransactionsWorkload, TransactionsWorkload
from chaos.workloads.workload import (
    REAL,
    REGISTRY,
    SIMULATED,
    Scale,
    Workload,
    WorkloadSurroundings,
)

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
"""These workloads use HBase and ZooKeeper directly, so they need a cluster whose HBase they can reach."""

__all__ = ["BENEATH", "REAL", "REGISTRY", "SIMULATED", "Scale", "Workload", "WorkloadSurroundings"]

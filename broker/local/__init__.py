"""A cluster of real processes on this machine: to try it out, for tests, and for fault testing.

::

    broker cluster up --nodes 3 --json             until SIGTERM
    with LocalCluster(Sizes(nodes=3)) as cluster: …          from a program

    plan            commands, files and addresses of any cluster; a test compares the compose file with them
    addresses       ports and folders of a cluster on this machine
    member          one process: start, ask, kill, freeze
    pids            the processes that belong to a folder, however they were started
    cluster         a whole cluster
    launcher        a whole cluster until a signal, for people and programs
    servers         the programs: ZooKeeper and HBase, fetched once
"""

from broker.local.addresses import Sizes
from broker.local.cluster import LocalCluster
from broker.local.member import Member
from broker.local.plan import ProcessKind

__all__ = ["LocalCluster", "Member", "ProcessKind", "Sizes"]

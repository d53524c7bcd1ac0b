"""A cluster of real processes on this machine: for tests, for trying it out, for fault testing.

::

    python -m broker.local up --nodes 3 --json     until SIGTERM
    with LocalCluster(Sizes(nodes=3)) as cluster: …          from a program

    plan      commands, files and addresses of any cluster; also what the compose file is compared with
    places    ports and folders of one on this machine
    member    one process: started, killed, frozen
    pids      which processes belong to a folder, whoever started them
    local     all of it together
"""

from broker.local.addresses import Sizes
from broker.local.cluster import LocalCluster
from broker.local.member import Member
from broker.local.plan import ProcessKind

__all__ = ["LocalCluster", "Member", "ProcessKind", "Sizes"]

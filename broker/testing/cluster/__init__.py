"""A cluster of real processes on this machine: for tests, for trying it out, for fault testing.

::

    python -m broker.testing.cluster up --nodes 3 --json     until SIGTERM
    with LocalCluster(Sizes(nodes=3)) as cluster: …          from a program

    plan      commands, files and addresses of any cluster; also what the compose file is compared with
    places    ports and folders of one on this machine
    member    one process: started, killed, frozen
    pids      which processes belong to a folder, whoever started them
    local     all of it together
"""

from broker.testing.cluster.local import LocalCluster
from broker.testing.cluster.member import Member
from broker.testing.cluster.places import Sizes
from broker.testing.cluster.plan import Kind

__all__ = ["Kind", "LocalCluster", "Member", "Sizes"]

"""The cluster's speed, against real HBase and ZooKeeper: ``python -m benchmarks.cluster``.

::

    ground          the cluster that is measured, and what is asked of it
    bare_commits    the same synced commits with no broker around them
    rates           (g) publishes through a node beside bare commits, (h) forwarded beside direct
    shares          (k) three nodes beside one
    pauses          (i) a topic's pause while leadership moves, by a move and by a kill
    failover        (j) a node that leads 1,000 topics is killed
    report          the page
"""

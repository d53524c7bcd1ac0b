"""Measure the speed of a cluster on real HBase and ZooKeeper: ``python -m benchmarks.cluster``.

::

    ground          the measured cluster, and the requests to it
    bare_commits    the same synced commits without a broker
    rates           (g) publishes through a node beside bare commits, (h) forwarded beside direct
    shares          (k) three nodes beside one
    pauses          (i) a topic's pause while leadership moves, by a move and by a kill
    failover        (j) a node that leads 1,000 topics is killed
    report          the page
"""

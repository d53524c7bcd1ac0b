"""Us and us as we were, in alternating turns of one run: ``python -m benchmarks.before --before PATH``.

PATH is a checkout of the commit to compare with; its processes are started by the same interpreter.

::

    sides           the servers of both checkouts
    publishing      (publish) one message and 100 a request, (client) through the client, (lone) one at a time
    polls           (polls) from disk, (time) by old time, (small) what was committed one message at a time
    expiry          (expiry) removing what has expired, (disk) bytes on disk
    cluster         (cluster) publishes, processor time, reads; (moves) handoff and failover; (kafka) three
                    Kafka brokers
    report          docs/results/benchmarks-storage.md
"""

"""Compare this broker with an earlier commit, in alternating turns of one run.

``python -m benchmarks.before --before PATH``. PATH is a checkout of the earlier commit. The same interpreter runs its
processes.

::

    sides           the servers of both checkouts
    publishing      (publish) one message and 100 a request, (client) through the client, (lone) one at a time
    polls           (polls) from disk, (time) by old time, (small) messages that were committed one at a time
    expiry          (expiry) removing expired messages, (disk) bytes on disk
    cluster         (cluster) publishes, processor time, reads; (moves) handoff and failover; (kafka) three
                    Kafka brokers
    report          docs/results/benchmarks-storage.md
"""

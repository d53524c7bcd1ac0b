"""Compare this broker with its peers on this machine: ``python -m benchmarks`` (or ``make bench``).

    a  client_publish   64 concurrent single-message publishes through each Python client
    b  http_single      one message per HTTP request at 64 connections
    c  http_batches     100 messages per request over 4 topics
    d  polls            polls of 100,000 messages, whole and by pages, from the cache and from disk
    e  latency          from a publish to the waiting consumer
    f  full_topic       publishing and polling by time with 5 M messages stored

Four modules make the figures comparable:

* ``harness`` sets the order of runs, and decides which runs count.
* ``occupancy`` finds out if another program used the processor.
* ``syncs`` checks that an acknowledgement is a sync.
* ``figures`` computes medians, ratios and verdicts.

``report`` turns the JSON into docs/results/benchmarks.md.
"""

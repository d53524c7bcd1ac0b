"""Us and our peers, side by side on this machine: ``python -m benchmarks`` (or ``make bench``).

    a  client_publish   64 concurrent single-message publishes through each Python client
    b  http_single      one message per HTTP request at 64 connections
    c  http_batches     100 messages per request over 4 topics
    d  polls            polls of 100,000 messages, whole and by pages, from the cache and from disk
    e  latency          from a publish to the consumer that waits for it
    f  full_topic       publishing and polling by time with 5 M messages stored

What makes the figures comparable is in ``harness`` (order of runs, which runs count), ``occupancy``
(whether something else used the processor), ``syncs`` (that an acknowledgement is a sync) and
``figures`` (medians, ratios, verdicts). ``report`` turns the JSON into docs/results/benchmarks.md.
"""

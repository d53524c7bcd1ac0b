"""Everything that a node does with a topic, over the logs of broker/storage.

::

    topics.py                                    the interface that handlers call
    leaders.py  topic_state.py                   the topics in use on this node, and their leaders
    topic_claims.py  hand_over.py                beginning and ending to lead a topic
    leader.py                                    one topic while one hold lasts
    writer.py  write.py  batches.py              group commit
    queue_budget.py                              the memory of queued publishes, shared among callers
    ids.py                                       ids that rise
    told_once.py                                 telling that ids are ahead of the clock, or that messages are lost
    overdue.py  admission.py                     refusing requests: too late, or not allowed by the topic
    keyed_log.py  dedupe.py  producers.py        publishing once, by keys and by producers' numbers
    effects.py  mark_window.py                   whose effect a repetition finds; how long it counts
    stored_payloads.py  references.py            storing messages, and publishing them together
    open_logs.py                                 the payload logs that a node keeps open, in number
    stages.py  payload_reader.py                 numbers of stages; reading stored messages
    topic_reader.py  fetch.py  pages.py          consuming: the rules, the pages of a reply
    streams.py  waiting_polls.py  cache.py       sending a reply; waiting for messages; recent messages in memory
    browse.py  blockers.py  ranges.py  stats.py  looking at a topic without consuming it
    cursors.py                                   named cursors
    retention.py  expiry.py                      the sweeper
    inversion.py  settlement.py                  cleaning up after invalid transactions
    registry.py  record_changes.py  reserved.py  records of topics; the broker's own topics
    surroundings.py  settings.py                 shared by all leaders of a node
    clock_comparison.py                          this node's clock against the storage's
"""

"""Logs and records, over one port to a store.

::

    table.py                              the port: rows whose cells change together if the head is as expected
    memory/  leveldb/  hbase/             its implementations
    entry.py  head.py  root.py  keys.py   the stored values, as pure data
    log.py                                the protocol: claiming, creating, deleting
    hold.py  ownchain.py  ownpage.py      a writer's log: rolling back and handing off; its chain; its own page
    resolve.py  log_reader.py             resolving the outcome of a change; reading without a claim
    marks.py  payloads.py  sweep.py       keys of requests; messages of transactions; removing expired messages
    page_packer.py  page_entries.py       joining small entries, in a sealed page and for readers
    ordinals.py                           counting messages by the heads of pages
    records.py                            topics, pins, claims of numbers
    hashchain.py  chainproof.py  …        the hash chain of a log, and computing it again
    check.py  chaincheck.py  …            checking a store by reading all of it
    shown_log.py                          showing a log as it is stored
"""

"""Logs and records, over one port to a store.

::

    table.py                              the port: rows whose cells change together if the head is as expected
    memory/  leveldb/  hbase/             its implementations
    entry.py  head.py  root.py  keys.py   the stored values, as pure data
    log.py  hold.py  ownpage.py           the protocol: claiming, writing, rolling back, handing off
    resolve.py  log_reader.py             resolving the outcome of a change; reading without a claim
    marks.py  payloads.py  sweep.py       keys of requests; messages of transactions; removing expired messages
    records.py                            topics, pins, claims of numbers
    check.py                              checking a store by reading all of it
"""

"""RowLog: a write-ahead log and a message queue tied to rows of HBase tables of the user's own.

It follows Lily's RowLog. An application puts a message together with the change of the row that it is about, in one
atomic step. The message lies in that row until each subscription is done with it. **The row's own state decides. The
index only gives hints, and wrong hints are repaired.** See docs/guides/rowlog.md; docs/internals/rowlog.md describes
each file::

    async with RowLog(pool, "records", id="mq", zookeeper=["localhost:2181"]) as log:
        await log.subscribe(Subscription("indexer"))
        log.listen("indexer", index)                      # async def index(message) -> bool
        await log.start()                                 # a candidate for processing
        await log.put(b"row", {b"data:title": b"A title"}, payload=b"created")
"""

from broker.errors import importing

with importing("rowlog"):
    from broker.rowlog.feeder import feeder
    from broker.rowlog.letters import DeadLetter
    from broker.rowlog.puts import Put
    from broker.rowlog.refusals import MessagesOpen, RowLocked
    from broker.rowlog.rowlog import RowLog
    from broker.rowlog.rows import Message
    from broker.rowlog.setup import Filter, Settings, Subscription

__all__ = [
    "DeadLetter",
    "Filter",
    "Message",
    "MessagesOpen",
    "Put",
    "RowLocked",
    "RowLog",
    "Settings",
    "Subscription",
    "feeder",
]

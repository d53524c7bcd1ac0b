"""Feed an MQ from a WAL: the feeder is the listener of a subscription of the WAL, and puts into the MQ.

If the put fails, or its outcome is unknown, the message stays open in the WAL and is fed again later. So a message
may be fed twice. The MQ may lie in the same row and family, under another log byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from broker.rowlog.listeners import Listener
from broker.rowlog.rowlog import RowLog
from broker.rowlog.rows import Message

Choose = Callable[[Message], Collection[str] | None]


def feeder(queue: RowLog, choose: Choose | None = None) -> Listener:
    """Return a listener that copies row, data and payload of each message into ``queue``.

    ``choose`` returns the subscriptions of the queue that a message is for. If it returns none, the message is not put.
    If it returns None, or ``choose`` is None, the message is for all subscriptions whose filter takes it.
    """

    async def feed(message: Message) -> bool:
        only = None if choose is None else choose(message)
        if only is None or only:
            await queue.put(
                message.row, None, message.payload, data=message.data, subscriptions=only
            )
        return True

    return feed

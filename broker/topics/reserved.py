"""Name the broker's own topics: logs like those of any topic, which no request can name.

Their namespace is not a valid name, so a request for one is refused as a bad name. Listings leave them out.
Everything else is as for any topic: records, claims, leases, hand-over, the sweeper, the check of a store.
"""

from __future__ import annotations

from typing import Final

from broker.model import TopicId

NAMESPACE: Final = "*"
"""The namespace of all the broker's own topics."""
TRANSACTIONS: Final = TopicId(NAMESPACE, "transactions")
"""The journal of the transaction service."""
KEPT_S: Final = (1 << 31) - 1
"""The ttl of a journal: only its floor removes messages, not their age."""


def is_reserved(topic: TopicId) -> bool:
    """Return whether a topic is one of the broker's own."""
    return topic.namespace == NAMESPACE

"""Topics that are the broker's own: logs like any topic's, which no request can name.

Their namespace is no valid name, so that a request for one is refused as a bad name. Listings leave them out. All
else is as for any topic: records, claims, leases, hand-over, the sweeper, the check of a store.
"""

from __future__ import annotations

from typing import Final

from broker.model import TopicId

NAMESPACE: Final = "*"
"""The namespace of all of them."""
TRANSACTIONS: Final = TopicId(NAMESPACE, "transactions")
"""The journal of the transaction service."""
KEPT_S: Final = (1 << 31) - 1
"""The ttl of a journal: its messages leave by its floor alone."""


def is_reserved(topic: TopicId) -> bool:
    """Whether a topic is the broker's own."""
    return topic.namespace == NAMESPACE

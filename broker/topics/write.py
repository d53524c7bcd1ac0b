"""One request on its way into a log: what is to be written, and the future that tells the outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from broker.model import RowId
from broker.topics.settings import PublishedIds

ROW_OVERHEAD_BYTES = 64
ENTRY_OVERHEAD_BYTES = 64
KeyMark = tuple[bytes, bytes]
"""Hash of an idempotency key, hash of the request's body."""
ProducerMark = tuple[bytes, int]
"""Hash of a producer's id, its number."""
Reference = tuple[int, int]
"""Number of a payload log, how many messages it has."""


class Write:
    """One request on its way into a log.

    With ``payloads`` None it publishes ``references``, which stand for ``messages``, and is told their ``ids``. ``key`` is there if it came
    with an idempotency key, ``producer`` if with a producer's number. ``attributes`` are those of each payload,
    ``lifetimes_ms`` the lifetime of each, where they are not all ``lifetime_ms``; else they are empty. ``rows`` is how many ids it takes,
    ``size`` what it counts for in queues. ``depends``: it rests on those that were written before it through the same
    writer, and so no other writer may store it.
    """

    __slots__ = (
        "attributes",
        "deadline",
        "depends",
        "future",
        "ids",
        "key",
        "lifetime_ms",
        "lifetimes_ms",
        "messages",
        "payload_bytes",
        "payloads",
        "pointer",
        "producer",
        "references",
        "rows",
        "size",
    )

    def __init__(  # noqa: PLR0913 - A value; its parts are named by its callers.
        self,
        future: asyncio.Future[PublishedIds],
        payloads: Sequence[bytes] | None,
        pointer: int | None = None,
        *,
        attributes: Sequence[bytes] = (),
        lifetime_ms: int | None = None,
        lifetimes_ms: Sequence[int | None] = (),
        key: KeyMark | None = None,
        producer: ProducerMark | None = None,
        deadline: float | None = None,
        depends: bool = False,
    ) -> None:
        """Keep the request."""
        self.future = future
        self.payloads = payloads
        self.pointer = pointer
        self.attributes = attributes
        self.lifetime_ms = lifetime_ms
        self.lifetimes_ms = lifetimes_ms
        self.key = key
        self.producer = producer
        self.deadline = math.inf if deadline is None else deadline
        self.depends = depends
        self.references: Sequence[Reference] = ()
        self.ids: Sequence[RowId] = ()
        self.rows = self.messages = len(payloads or ())
        self.payload_bytes = sum(map(len, payloads or ()))
        self.size = self.payload_bytes + ROW_OVERHEAD_BYTES * self.rows
        if attributes or lifetimes_ms:
            # Each message may have an entry of its own.
            self.size += sum(map(len, attributes)) + ENTRY_OVERHEAD_BYTES * self.rows

    def refer(self, references: Sequence[Reference]) -> None:
        """Make it a publish of references."""
        self.references = references
        self.rows = len(references)
        self.messages = sum(messages for _, messages in references)
        self.size = ROW_OVERHEAD_BYTES * self.rows

    @property
    def may_be_carried(self) -> bool:
        """Whether the next leader may store it if the one before certainly did not.

        A key, a producer's number and a payload log's seal are looked up anew under the next leader. What depends on
        writes before it was decided on a state that may not be so any more.
        """
        is_looked_up = self.key is not None or self.producer is not None or self.payloads is None
        return not (is_looked_up or self.depends)

    @property
    def is_plain(self) -> bool:
        """Whether its messages may share entries with those of other plain requests."""
        return (
            self.pointer is None
            and self.lifetime_ms is None
            and not self.lifetimes_ms
            and self.payloads is not None
        )

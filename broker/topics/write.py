"""Describe one request to a log: the messages to write, and the future for its outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.errors import BrokerError
from broker.model import LogKey
from broker.topics.settings import PublishedIds

MESSAGE_OVERHEAD_BYTES = 64
ENTRY_OVERHEAD_BYTES = 64
KeyMark = tuple[bytes, bytes]
"""The hash of an idempotency key, and the hash of the request's body."""


class ProducerMark(NamedTuple):
    """The hash of a producer's id, its number, and the run of numbers that ends with it (producers.py).

    ``since`` is the least number of the run. ``since_ms`` is the time of the run's first message; None: it begins
    with this publish.
    """

    key: bytes
    number: int
    since: int
    since_ms: int | None


Reference = tuple[int, int, bytes]
"""The number of a payload log, the number of its messages, and the last hash of its chain (b"": it has none)."""


class Write:
    """One request to a log.

    With ``payloads`` None it publishes ``references``, which stand for ``messages`` messages; the writer sets their
    ``ids``. ``key`` is set for a request with an idempotency key, ``producer`` for one with a producer's number.
    ``attributes`` has those of each payload, and is empty if no payload has any. ``lifetimes_ms`` has the lifetime of
    each payload, and is empty if all have ``lifetime_ms``. ``count`` is the number of keys that the request takes,
    ``size`` its size in queues, ``counted`` the part of it that the queues' budget counts now. ``depends``: the request depends on earlier writes through the same writer, so no
    other writer may store it.

    The request lets go of its future with the outcome: an error there leads to frames that still name the request.
    """

    __slots__ = (
        "_future",
        "attributes",
        "caller",
        "count",
        "counted",
        "deadline",
        "depends",
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
        caller: str = "",
    ) -> None:
        """Keep the request."""
        self._future: asyncio.Future[PublishedIds] | None = future
        self.payloads = payloads
        self.pointer = pointer
        self.attributes = attributes
        self.lifetime_ms = lifetime_ms
        self.lifetimes_ms = lifetimes_ms
        self.key = key
        self.producer = producer
        self.deadline = math.inf if deadline is None else deadline
        self.depends = depends
        self.caller = caller
        self.counted = 0
        self.references: Sequence[Reference] = ()
        self.ids: Sequence[LogKey] = ()
        self.count = self.messages = len(payloads or ())
        self.payload_bytes = sum(map(len, payloads or ()))
        self.size = self.payload_bytes + MESSAGE_OVERHEAD_BYTES * self.count
        if attributes or lifetimes_ms:
            # Each message may have an entry of its own.
            self.size += sum(map(len, attributes)) + ENTRY_OVERHEAD_BYTES * self.count

    def let_go(self) -> None:
        """Free the messages of a request that is going to fail before its turn."""
        self.payloads = None if self.payloads is None else ()
        self.attributes = ()

    def refer(self, references: Sequence[Reference]) -> None:
        """Turn the request into a publish of references."""
        self.references = references
        self.count = len(references)
        self.messages = sum(messages for _, messages, _ in references)
        self.size = MESSAGE_OVERHEAD_BYTES * self.count

    @property
    def future(self) -> asyncio.Future[PublishedIds]:
        """The future for the outcome. A request that has its outcome has no future any more."""
        assert self._future is not None, "the request has its outcome"
        return self._future

    @property
    def is_done(self) -> bool:
        """True if the request has its outcome, or its caller is gone."""
        return self._future is None or self._future.done()

    def answer(self, ids: PublishedIds) -> None:
        """Give the request its outcome, if it has none yet."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(ids)

    def fail(self, error: BrokerError) -> None:
        """Fail the request, if it has no outcome yet."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_exception(error)

    @property
    def may_be_carried(self) -> bool:
        """Return whether the next leader may store the request if the former one certainly did not.

        It may not if the next leader has to look up a key, a producer's number or a payload log's seal again. Nor may
        it store a request that depends on earlier writes: that request rests on a state that may have changed.
        """
        is_looked_up = self.key is not None or self.producer is not None or self.payloads is None
        return not (is_looked_up or self.depends)

    @property
    def is_plain(self) -> bool:
        """Return whether its messages may share entries with those of other plain requests."""
        return (
            self.pointer is None
            and self.lifetime_ms is None
            and not self.lifetimes_ms
            and self.payloads is not None
        )


def fail(writes: Iterable[Write], error: BrokerError) -> None:
    """Answer the requests that have no answer yet with an error."""
    for write in writes:
        write.fail(error)

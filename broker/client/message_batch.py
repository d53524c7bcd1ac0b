"""Messages that share a request: each has its caller, and its deadline."""

from __future__ import annotations

import asyncio
import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from broker.client import outcomes
from broker.client.values import Published
from broker.errors import BrokerError
from broker.model import PublishRequest

STEP_MAX: Final = 1_000
"""How many messages fail in one step of the event loop."""


class MessageBatch:
    """The messages of one request, in the order of their calls, which is the order of their deadlines.

    Attributes:
        payloads, attributes, ttls_s: the messages.
        ends: the deadline of each, by the loop's clock, and of the last one as ``last_ends``.
        answers: the future of each.
        count, size: the room that the batch takes, until it is settled.
        in_flight: whether a request with these messages was sent, and is not answered.
        unknown: whether a request with these messages may have been carried out without an answer. From then on the
            batch must not change: only the same request may be repeated.
        failed: the error of the last attempt.
    """

    def __init__(
        self,
        payloads: list[bytes],
        attributes: list[bytes],
        ttls_s: list[int | None],
        ends: list[float],
        answers: list[asyncio.Future[Published]],
    ) -> None:
        self.payloads = payloads
        self.attributes = attributes
        self.ttls_s = ttls_s
        self.ends = ends
        self.answers = answers
        self.count = len(payloads)
        self.size = sum(map(len, payloads)) + sum(map(len, attributes))
        self.last_ends = ends[-1]
        self.in_flight = self.unknown = False
        self.failed: BrokerError | None = None
        self._expired = 0

    def drop_done(self) -> bool:
        """Leave out the messages whose callers have their outcome, or were cancelled. Return whether there were any."""
        if not any([answer.done() for answer in self.answers]):  # noqa: C419 - A list is twice as fast.
            return False
        kept = [at for at, answer in enumerate(self.answers) if not answer.done()]
        self.payloads = [self.payloads[at] for at in kept]
        self.attributes = [self.attributes[at] for at in kept]
        self.ttls_s = [self.ttls_s[at] for at in kept]
        self.ends = [self.ends[at] for at in kept]
        self.answers = [self.answers[at] for at in kept]
        self._expired = 0
        return True

    def wanted(self) -> PublishRequest:
        """Return the messages as a request."""
        return PublishRequest(
            None,
            self.payloads,
            attributes=self.attributes if any(self.attributes) else (),
            ttls_s=self.ttls_s if any(self.ttls_s) else (),
        )

    def singles(self) -> list[MessageBatch]:
        """Return a batch for each message."""
        parts = zip(
            self.payloads, self.attributes, self.ttls_s, self.ends, self.answers, strict=True
        )
        return [
            MessageBatch([one], [beside], [ttl], [end], [own])
            for one, beside, ttl, end, own in parts
        ]

    def fail(self, error: BrokerError, until: int | None = None) -> None:
        """Give each waiting caller its own copy of an error: a shared one would collect the traceback of each.

        With ``until``, only the callers of so many messages, from the first on.
        """
        for answer in self.answers[:until]:
            if not answer.done():
                answer.set_exception(copy.copy(error))

    def succeed(self, results: Sequence[Published]) -> None:
        """Give each waiting caller its acknowledgement."""
        for answer, own in zip(self.answers, results, strict=True):
            if not answer.done():
                answer.set_result(own)

    def expire(self, now: float) -> float:
        """Fail the messages whose deadlines have passed, up to ``STEP_MAX``. Return the deadline of the next one."""
        due = bisect_right(self.ends, now, self._expired)
        if due > self._expired:
            until = min(due, self._expired + STEP_MAX)
            late = outcomes.late(self.failed, sent=self.in_flight or self.unknown)
            self.fail(late, until)
            self._expired = until
        return self.ends[self._expired] if self._expired < len(self.ends) else math.inf

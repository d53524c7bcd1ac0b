"""Publishing in the background: the caller continues while a bounded queue holds its messages.

::

    publish_later ──> room? ──> [ publisher of a topic ] ──> one request at a time, as full as its bounds allow
         │                                                 │ refused for now: again, up to its deadline
         └ none: wait | drop | raise                       └ acknowledged, refused, unknown: the future

One request of a topic is in flight at a time, and the next one leaves only after it is settled. So the
order of the calls is the order in the topic, also with retries. Calls that wait for room also keep their
order: they enter the queue one after the other, even if a later, smaller message would fit first. The bounds
apply to all topics together, and to awaited publishes, too (see ``room``). As for those, the deadline of a message
counts from its call.
No message is lost in silence: the queue counts each message that it drops or gives up, and sets the error
on its future. It logs the first of a series of losses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.client.publish_request import EncodedMessage
from broker.client.room import Room
from broker.client.topic_publisher import TopicPublisher
from broker.client.values import OnFull, Published, check_on_full
from broker.errors import BrokerError
from broker.escapes import escaping_logger
from broker.model import TopicId

log: Final = escaping_logger(__name__)

Answer = asyncio.Future[Published]


@dataclass(slots=True)
class Counts:
    """Counts messages by outcome. Every accepted message ends as published, refused or unknown."""

    accepted: int = 0
    published: int = 0
    refused: int = 0
    unknown: int = 0
    """Also those whose callers cancelled their futures."""
    dropped: int = 0
    """Not accepted, because the queue was full."""


class Later:
    """The queue of ``publish_later``.

    Args:
        publisher: makes the publisher of a topic, with one request in flight.
        room: holds the messages.
        ends: returns the deadline of a call that begins now.
        on_full: what ``put`` does without room, unless its caller decides.
    """

    def __init__(
        self,
        publisher: Callable[[TopicId], TopicPublisher],
        room: Room,
        ends: Callable[[], float],
        on_full: OnFull,
    ) -> None:
        self.counts = Counts()
        self._publisher = publisher
        self._room = room
        self._ends = ends
        self._on_full = on_full
        self._unsettled: set[Answer] = set()
        self._losing = False

    @property
    def waiting(self) -> int:
        """The number of messages that are not settled yet."""
        return len(self._unsettled)

    async def put(
        self, topic: TopicId, message: EncodedMessage, on_full: OnFull | None = None
    ) -> Answer:
        """Queue a message.

        Raises:
            Overloaded: there is no room, and ``on_full`` is ``"raise"``; or there was none in time.
            Unavailable: the client was closed.
            ValueError: ``on_full`` is none of the allowed words.
        """
        choice = check_on_full(on_full or self._on_full)
        ends = self._ends()
        accept = partial(self._accept, topic, message, ends)
        if self._room.take(1, message.size):
            return accept()
        if choice == "wait":
            return await self._room.wait(1, message.size, ends, accept, Answer.cancel)
        if choice == "raise":
            raise self._room.full()
        answer: Answer = asyncio.get_running_loop().create_future()
        self.counts.dropped += 1
        self._lose(answer, self._room.full())
        return answer

    async def flush(self) -> None:
        """Wait until all messages accepted so far are settled."""
        if self._unsettled:
            await asyncio.wait(set(self._unsettled))

    async def end(self, timeout_s: float) -> None:
        """Give the queued messages ``timeout_s`` seconds. The close of the client gives up the others."""
        if self._unsettled:
            await asyncio.wait(set(self._unsettled), timeout=timeout_s)

    def forget(self) -> None:
        """Count the messages that are not settled as unknown: their loop has ended."""
        self.counts.unknown += len(self._unsettled)
        self._unsettled = set()

    # --- Inside -----------------------------------------------------------------------------------

    def _accept(self, topic: TopicId, message: EncodedMessage, ends: float) -> Answer:
        answer = self._publisher(topic).add(
            message.payload, message.attributes, ends, message.ttl_s
        )
        self.counts.accepted += 1
        self._unsettled.add(answer)
        answer.add_done_callback(self._settled)
        return answer

    def _settled(self, answer: Answer) -> None:
        self._unsettled.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or getattr(error, "outcome", "refused") == "unknown":
            self.counts.unknown += 1
        elif error is None:
            self.counts.published += 1
            self._losing = False
            return
        else:
            self.counts.refused += 1
        if isinstance(error, BrokerError):
            self._report(error)

    def _lose(self, answer: Answer, error: BrokerError) -> None:
        answer.set_exception(error)
        answer.exception()  # The caller may ignore the future; ``counts`` has the loss.
        self._report(error)

    def _report(self, error: BrokerError) -> None:
        """Log the first of a series of losses."""
        if not self._losing:
            self._losing = True
            log.warning(
                "messages to be published later are lost: %s %s", error.message, self.counts
            )

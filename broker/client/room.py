"""The room for publishes in the memory of a client: one bound for all of them, awaited or later.

A publish takes room before the client keeps a copy of it, and gives the room back when it is settled. If there is no
room, its call waits in the order of the calls, until its deadline. Then it is refused::

    publish, publish_later ──▶ room? ──▶ publisher, request, answer ──▶ room is given back
                                └ none: wait ──▶ the deadline: Overloaded
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from broker.client import outcomes
from broker.errors import BrokerError, Overloaded

T = TypeVar("T")

CLOSED: Final = "the client was closed"


class _CallInLine(NamedTuple):
    """A call that waits for room, and what it does as soon as it has it."""

    messages: int
    size: int
    start: Callable[[], Any]


class Room:
    """Counts the messages and bytes of publishes that are not settled. One publish always fits in an empty room."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = self._bytes = 0
        self._waiting: OrderedDict[asyncio.Future[Any], _CallInLine] = OrderedDict()
        self._closed = False

    def take(self, count: int, size: int) -> bool:
        """Take room at once. Return whether there was any, and no earlier call waits for it.

        Raises:
            Unavailable: the client was closed.
        """
        if self._closed:
            raise outcomes.never_sent(CLOSED)
        if self._waiting or not self._fits(count, size):
            return False
        self._messages += count
        self._bytes += size
        return True

    def _fits(self, count: int, size: int) -> bool:
        return not self._messages or (
            self._messages + count <= self._messages_max and self._bytes + size <= self._bytes_max
        )

    async def wait(
        self,
        count: int,
        size: int,
        ends: float,
        start: Callable[[], T],
        undo: Callable[[T], object],
    ) -> T:
        """Wait for room until the time ``ends`` of the loop, take it, and return the result of ``start``.

        ``start`` is called in the moment when the room is taken, so that no later call overtakes this one. If this
        call is cancelled after that, ``undo`` gets the result.

        Raises:
            Overloaded: there was no room in time.
            Unavailable: the client was closed.
        """
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[T] = loop.create_future()
        self._waiting[granted] = _CallInLine(count, size, start)
        timer = loop.call_at(ends, self._expire, granted)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                undo(granted.result())
            raise
        finally:
            timer.cancel()
            if self._waiting.pop(granted, None) is not None:
                self._admit()  # The next one may fit.
            del granted  # The error's traceback keeps this frame.

    @asynccontextmanager
    async def reserved(self, count: int, size: int, ends: float) -> AsyncGenerator[None]:
        """Take room for a block; wait for it as ``wait`` does."""
        if not self.take(count, size):
            await self.wait(count, size, ends, lambda: None, lambda _: self.give_back(count, size))
        try:
            yield
        finally:
            self.give_back(count, size)

    def give_back(self, count: int, size: int) -> None:
        """Give room back, and let the calls that wait for it continue."""
        self._messages -= count
        self._bytes -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            granted, (count, size, start) = next(iter(self._waiting.items()))
            if not self._fits(count, size):
                return
            del self._waiting[granted]
            if not granted.done():
                self._messages += count
                self._bytes += size
                granted.set_result(start())

    def clear(self) -> None:
        """Forget the taken room, and the calls that wait: their loop has ended."""
        self._messages = self._bytes = 0
        self._waiting = OrderedDict()

    def full(self) -> Overloaded:
        """Return the error of a publish for which there is no room."""
        return Overloaded(
            f"The client is full: {self._messages:,} messages with {self._bytes:,} bytes are not settled (at most "
            f"later_messages_max {self._messages_max:,}, later_bytes_max {self._bytes_max:,})."
        )

    def _expire(self, granted: asyncio.Future[Any]) -> None:
        self._refuse(granted, self.full())

    def _refuse(self, granted: asyncio.Future[Any], error: BrokerError) -> None:
        if not granted.done():
            granted.set_exception(error)

    def close(self) -> None:
        """Refuse the calls that wait, and all later ones."""
        self._closed = True
        waiting, self._waiting = self._waiting, OrderedDict()
        for granted in waiting:
            self._refuse(granted, outcomes.never_sent(CLOSED))

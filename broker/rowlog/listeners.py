"""Local listeners: async functions of this process, by subscription.

A listener returns True, or nothing: the message is done. False, or an exception: it failed, and is offered again
later. A message may come again after it was done: at least once is the promise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from broker.rowlog.rows import Message

Listener = Callable[[Message], Awaitable[bool | None]]


class NoListener(Exception):
    """No listener takes messages of a subscription now: that is no failed try."""


class Offers(Protocol):
    """Where messages are offered to listeners, local or remote."""

    def has(self, subscription: str) -> bool:
        """Whether some listener takes messages of a subscription now."""

    async def offer(self, subscription: str, message: Message) -> bool:
        """Offer a message, and return whether it is done. Raises NoListener, and whatever the listener raises."""


class LocalListeners:
    """The listeners of this process."""

    def __init__(self) -> None:
        """Begin with none."""
        self._listeners: dict[str, Listener] = {}

    def add(self, subscription: str, listener: Listener) -> None:
        """Have a listener; one at most for each subscription."""
        self._listeners[subscription] = listener

    def remove(self, subscription: str) -> None:
        """Have it no more."""
        self._listeners.pop(subscription, None)

    @property
    def names(self) -> list[str]:
        """The subscriptions that have one."""
        return sorted(self._listeners)

    def has(self, subscription: str) -> bool:
        """Whether there is one."""
        return subscription in self._listeners

    async def offer(self, subscription: str, message: Message) -> bool:
        """Call the listener."""
        listener = self._listeners.get(subscription)
        if listener is None:
            raise NoListener(f"subscription '{subscription}' has no listener in this process")
        told = await listener(message)
        if told is not None and not isinstance(told, bool):
            raise TypeError(f"a listener returns True, False or None, not {type(told).__name__}")
        return told is not False

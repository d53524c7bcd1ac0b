"""Local listeners: async functions of this process, by subscription.

A listener that returns True or None is done with the message. After False or an exception, the message has failed and
is offered again later. A message may be offered again although it is done: delivery is at least once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from broker.rowlog.rows import Message

Listener = Callable[[Message], Awaitable[bool | None]]


REASON_MAX: Final = 300


def reason_of(error: Exception) -> str:
    """Return the text of a listener's error, which may be any: too long, no UTF-8, or an error itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - The text of the listener's error is code of its author, too.
        text = "its text can't be had"
    text = f"{type(error).__name__}: {text}"[:REASON_MAX]
    return text.encode(errors="backslashreplace").decode()


class NoListener(Exception):
    """No listener takes messages of a subscription now. This is no failed try."""


class ListenerTimeout(Exception):
    """A listener took too long, and was cancelled."""

    def __init__(self, timeout_s: float) -> None:
        """Name the time."""
        super().__init__(f"the listener took longer than {timeout_s:g} s")


class Offers(Protocol):
    """The port through which a processor offers messages to listeners, local or remote."""

    def has(self, subscription: str) -> bool:
        """Return whether a listener takes messages of a subscription now."""

    async def offer(self, subscription: str, message: Message, timeout_s: float) -> bool:
        """Offer a message, and return whether it is done. ``timeout_s`` counts from the listener's call on.

        Raises NoListener, ListenerTimeout, and the errors of the listener.
        """


class LocalListeners:
    """The listeners of this process."""

    def __init__(self) -> None:
        """Have no listener yet."""
        self._listeners: dict[str, Listener] = {}

    def add(self, subscription: str, listener: Listener) -> None:
        """Add a listener. A subscription has one at most: a second one replaces the first."""
        self._listeners[subscription] = listener

    def remove(self, subscription: str) -> None:
        """Remove the listener of a subscription, if it has one."""
        self._listeners.pop(subscription, None)

    @property
    def names(self) -> list[str]:
        """The subscriptions that have a listener."""
        return sorted(self._listeners)

    def has(self, subscription: str) -> bool:
        """Return whether the subscription has a listener."""
        return subscription in self._listeners

    async def offer(self, subscription: str, message: Message, timeout_s: float) -> bool:
        """Call the listener. Raises NoListener, ListenerTimeout, TypeError, and the errors of the listener.

        If the listener awaits a task that was cancelled, it raises CancelledError, and its caller is not cancelled.
        That is an error as any other; as CancelledError it would end the processor.
        """
        listener = self._listeners.get(subscription)
        if listener is None:
            raise NoListener(f"subscription '{subscription}' has no listener in this process")
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                told = await listener(message)
        except TimeoutError as error:
            if limit.expired():
                raise ListenerTimeout(timeout_s) from error
            raise
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the listener awaited a task that was cancelled") from cancelled
        if told is not None and not isinstance(told, bool):
            raise TypeError(f"a listener returns True, False or None, not {type(told).__name__}")
        return told is not False

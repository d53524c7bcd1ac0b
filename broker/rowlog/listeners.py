"""Local listeners: async functions of this process, by subscription.

A listener that returns True or None is done with the message. After False, or whatever else it raises or returns, the
message has failed and is offered again later (see ``broker.user_code``). A message may be offered again although it is done: delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from broker import user_code
from broker.rowlog.rows import Message

Listener = Callable[[Message], Awaitable[bool | None]]


REASON_MAX: Final = 300
"""How many bytes of the reason of a failed try are kept."""


def reason_of(error: Exception) -> str:
    """Return why a try failed, as text that can be stored."""
    if isinstance(error, ListenerFailed):
        return user_code.storable(str(error), REASON_MAX)  # Another node may have told it.
    return user_code.text_of(error, REASON_MAX)


class NoListener(Exception):
    """No listener takes messages of a subscription now. This is no failed try."""


class ListenerFailed(Exception):
    """A listener failed. The text is its reason."""


class Offers(Protocol):
    """The port through which a processor offers messages to listeners, local or remote."""

    def has(self, subscription: str) -> bool:
        """Return whether a listener takes messages of a subscription now."""

    async def offer(self, subscription: str, message: Message, timeout_s: float) -> bool:
        """Offer a message, and return whether it is done. ``timeout_s`` counts from the listener's call on.

        Raises NoListener, ListenerFailed.
        """


class LocalListeners:
    """The listeners of this process."""

    def __init__(self) -> None:
        """Have no listener yet."""
        self._listeners: dict[str, Listener] = {}

    def add(self, subscription: str, listener: Listener) -> None:
        """Add a listener. A subscription has one at most: a second one replaces the first. Raises TypeError."""
        user_code.check_takes(listener, 1, "A listener")
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
        """Call the listener. Raises NoListener, ListenerFailed; and what of it ends the program."""
        listener = self._listeners.get(subscription)
        if listener is None:
            raise NoListener(f"subscription '{subscription}' has no listener in this process")
        ended = await user_code.run(listener, message, limit_s=timeout_s)
        if isinstance(ended.error, user_code.TookTooLong):
            raise too_late(timeout_s)
        if user_code.ends_program(ended.error):
            return bool(ended.result())
        if ended.error is not None:
            raise ListenerFailed(user_code.text_of(ended.error, REASON_MAX))
        told = ended.value
        if told is not None and not isinstance(told, bool):
            raise ListenerFailed(
                f"TypeError: a listener returns True, False or None, not {type(told).__name__}"
            )
        return told is not False


def too_late(timeout_s: float) -> ListenerFailed:
    """Return the error of a listener that did not end in time, and was cancelled."""
    return ListenerFailed(f"the listener took longer than {timeout_s:g} s")

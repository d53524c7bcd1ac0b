"""Share the memory of queued publishes among callers: if it runs out, the largest caller gives way.

A caller is a principal, or an address (``http/budget.py``). Each request is counted from its queue to its
outcome. Those that still wait in a queue may be refused to make room::

    submitted ──▶ queued ──▶ in flight ──▶ outcome
                    └─ refused, if its caller holds the most and another one needs room

A quarter is kept from any one caller. Requests from within the process have no caller, and are never refused for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Final

from broker.errors import Overloaded
from broker.topics.write import Write

REFUSED_AT_ONCE: Final = 256
"""The most queued requests that make room for one: more would block the event loop for too long."""
CALLERS_AT_ONCE: Final = 8


class _Caller:
    __slots__ = ("bytes", "queued")

    def __init__(self) -> None:
        self.bytes = 0
        self.queued: dict[Write, None] = {}


class QueueBudget:
    """The bytes of all requests of a node that are queued or being committed."""

    def __init__(self, bytes_max: int) -> None:
        """Start with no request."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._share = bytes_max * 3 // 4
        self._callers: dict[str, _Caller] = {}

    def take(self, write: Write) -> None:
        """Count a request that is about to be queued. Raises Overloaded."""
        known = self._callers.get(write.caller)
        mine = 0 if known is None else known.bytes
        if mine > self._share and write.caller:
            raise Overloaded(
                "The queued publishes of this caller take 3/4 of limits.queued_bytes_max. Try again.",
                retry_after_s=1,
            )
        if self.bytes > self.bytes_max:
            self._make_room(mine)
        self.keep(write)

    def keep(self, write: Write) -> None:
        """Count a queued request without a bound: it was accepted before."""
        caller = self._callers.get(write.caller)
        if caller is None:
            caller = self._callers[write.caller] = _Caller()
        write.counted = write.size
        caller.bytes += write.size
        self.bytes += write.size
        if write.caller:
            caller.queued[write] = None

    def sent(self, writes: Iterable[Write]) -> None:
        """Note that requests have left their queue for a batch."""
        for write in writes:
            if write.caller:
                self._callers[write.caller].queued.pop(write, None)

    def give(self, writes: Iterable[Write]) -> None:
        """Count requests no more. Those that are not counted any more change nothing."""
        for write in writes:
            size, write.counted = write.counted, 0
            if not size:
                continue
            caller = self._callers[write.caller]
            caller.queued.pop(write, None)
            caller.bytes -= size
            self.bytes -= size
            if not caller.bytes:
                del self._callers[write.caller]

    def _make_room(self, mine: int) -> None:
        """Refuse queued requests of callers that hold more than ``mine``, the newest first. Raises Overloaded."""
        left = REFUSED_AT_ONCE
        callers = nlargest(CALLERS_AT_ONCE, self._callers.values(), lambda each: each.bytes)
        for caller in callers:
            while caller.queued and caller.bytes > mine and left and self.bytes > self.bytes_max:
                write = next(reversed(caller.queued))
                self.give([write])
                write.let_go()
                write.fail(_full())
                left -= 1
        if self.bytes > self.bytes_max:
            raise _full()


def _full() -> Overloaded:
    return Overloaded("The queues of this node are full. Try again.", retry_after_s=1)

"""Give up on a silent leader once another node should lead.

A paused process, or a failed machine, does not close its connections. The sender of a request would wait until the
deadline, although another node already leads. So while a request is in flight, this node checks regularly that the
topic's place is still the node asked. After a change it waits for a grace period, because a leader that hands over
still answers the requests that it has accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broker.http.answer import NoAnswer
from broker.shield import bare

LOOK_S: Final = 0.1
GRACE_S: Final = 0.5

Result = TypeVar("Result")


class LeaderChanged(NoAnswer):
    """Another node should lead before an answer came."""


class _Watch:
    """Calls ``where`` every ``LOOK_S``, and ends ``scope`` ``GRACE_S`` after its result has changed."""

    def __init__(self, where: Callable[[], object], scope: asyncio.Timeout) -> None:
        self._where = where
        self._was = where()
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._where() == self._was:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        else:
            self._scope.reschedule(self._loop.time() + GRACE_S)

    def end(self) -> None:
        """Stop watching."""
        self._timer.cancel()


async def unless_moved(asking: Awaitable[Result], where: Callable[[], object]) -> Result:
    """Return the result of ``asking``, but cancel it soon after ``where()`` has changed.

    Raises:
        LeaderChanged: ``asking`` was cancelled.
    """
    try:
        async with asyncio.timeout(None) as scope:
            watch = _Watch(where, scope)
            try:
                return await asking
            finally:
                watch.end()
    except TimeoutError as error:
        raise LeaderChanged("another node leads, and the node asked has not answered") from bare(
            error
        )

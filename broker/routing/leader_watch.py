"""Giving up on a leader that is silent once another one should lead.

A process that is paused, or a machine that is gone, does not close its connections: whoever asked it would
wait until the deadline, though another node leads long since. So while a request is on its way, this node
looks now and then whether the topic is still placed where it was sent to. A leader that hands over in good
order answers what it has taken, which is what the moment of grace is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broker.http.answer import NoAnswer

LOOK_S: Final = 0.25
GRACE_S: Final = 0.5

Result = TypeVar("Result")


class LeaderChanged(NoAnswer):
    """The request was sent, and no answer came before another node was to lead."""


class _Watch:
    """Looks at ``where`` as long as it lasts, and ends ``scope`` some time after it has changed."""

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
        """Look no more."""
        self._timer.cancel()


async def unless_moved(asking: Awaitable[Result], where: Callable[[], object]) -> Result:
    """Return what ``asking`` gives; give it up soon after ``where()`` has changed.

    Raises:
        LeaderChanged: it was given up.
    """
    try:
        async with asyncio.timeout(None) as scope:
            watch = _Watch(where, scope)
            try:
                return await asking
            finally:
                watch.end()
    except TimeoutError as error:
        raise LeaderChanged("another node leads before this one has answered") from error

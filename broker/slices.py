"""Long work on the event loop, in slices of time.

One thread serves all requests, so work that takes long would keep every other request waiting. Such work is
made of small steps. After each step it asks its slice whether its time is over, and if so waits for the next slice.
All long work of a loop shares one slice, however much of it there is. After each, some rounds of the loop are free of long
work, since an answer takes several rounds::

    round    slice of A, requests │ requests │ requests │ requests │ slice of B, requests │ requests │ …

So a request waits for a slice or two, and where there are none, free rounds cost microseconds. Work that waits for
something else between its steps may get a new slice somewhat early, which costs no more than that.

Work that can't be cut into small steps, since it copies much at once, goes to one thread (``aside``), of which Python
lets the loop run every half of a millisecond or so.

Time is the loop's. Where that is virtual, no slice is ever over, and a run stays the same every time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.0005
"""How long work may go on; a step of it should take less than this."""
ROUNDS_FREE: Final = 3
"""The rounds of the loop between two slices. With none, a publish beside long work took five slices."""

ASIDE_BYTES_MIN: Final = 256 * 1024
ASIDE_ITEMS_MIN: Final = 2_048
"""Work on so many bytes or items belongs aside: on the loop it would take more than a slice."""

_Result = TypeVar("_Result")
_Turns = deque[asyncio.Future[None]]
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="aside")
"""One thread: two would keep the loop waiting twice as long."""


async def aside(work: Callable[[], _Result]) -> _Result:
    """Do work in the thread and return what it returns. It must not touch what the loop changes meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(ASIDE, work)


class Slice:
    """The slice of one piece of long work. It begins when it is made."""

    __slots__ = ("_ends_s", "_loop")

    def __init__(self) -> None:
        """Begin; there must be a running loop."""
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether other work should go on now."""
        return self._loop.time() >= self._ends_s

    async def go_on(self) -> None:
        """Return at once within the slice; else let other work go on, and return with the next slice."""
        if self._loop.time() >= self._ends_s:
            await self.next()

    async def next(self) -> None:
        """Let other work go on, and return with the next slice."""
        await _turn(self._loop)
        self._ends_s = self._loop.time() + SLICE_S


async def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until it is this caller's turn: those that wait get one slice each, with free rounds between."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = deque()
    mine: asyncio.Future[None] = loop.create_future()
    turns.append(mine)
    if len(turns) == 1:
        loop.call_soon(_give, loop, turns, ROUNDS_FREE)
    await mine


def _give(loop: asyncio.AbstractEventLoop, turns: _Turns, rounds_free: int) -> None:
    """Let some rounds go by, and give the next to the first that still waits."""
    if rounds_free:
        loop.call_soon(_give, loop, turns, rounds_free - 1)
        return
    while turns:
        first = turns.popleft()
        if not first.done():
            first.set_result(None)
            break
    if turns:
        loop.call_soon(_give, loop, turns, ROUNDS_FREE)

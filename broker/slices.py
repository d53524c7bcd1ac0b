"""Long work on the event loop, in slices of time.

One thread serves all requests, so work that takes long would keep every other request waiting. Such work is
made of small steps. After each step it asks its slice whether its time is over, and if so waits for the next slice.
All long work of a loop shares one slice, however much of it there is. After each, some rounds of the loop are free of long
work, since an answer takes several rounds::

    round    slice of A, requests │ requests │ requests │ requests │ slice of B, requests │ requests │ …

While **short work** is under way, a change on its way to the disk, no slice is given for up to HELD_S_MAX: the change
passes from the loop to a thread and back, and would wait for a slice each time.

So a request waits for a slice or two, and where there are none, free rounds cost microseconds. Work that waits for
something else between its steps may get a new slice somewhat early, which costs no more than that.

Work that can't be cut into small steps, since it copies much at once, goes to one thread (``aside``), of which Python
lets the loop run every half of a millisecond or so.

Time is the loop's. Where that is virtual, no slice is ever over, and a run stays the same every time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.0005
"""How long work may go on; a step of it should take less than this."""
ROUNDS_FREE: Final = 8
"""The rounds of the loop between two slices. With none, a publish beside long work took five slices; with 3, 99 of 100
took 6 to 8 ms beside pages of messages of 4 MB, and 5 to 6 with 8."""
HELD_S_MAX: Final = 0.003
"""How long short work holds long work up: a write that waits for a disk must not stop it. Beside polls that skip
very many messages 99 of 100 publishes took 6.5 to 8 ms without this, and 4 to 5 with it."""

ASIDE_BYTES_MIN: Final = 256 * 1024
ASIDE_ITEMS_MIN: Final = 2_048
"""Work on so many bytes or items belongs aside: on the loop it would take more than a slice."""

_Result = TypeVar("_Result")

ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="aside")
"""One thread: two would keep the loop waiting twice as long."""


async def aside(work: Callable[[], _Result]) -> _Result:
    """Do work in the thread and return what it returns. It must not touch what the loop changes meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(ASIDE, work)


async def in_slices(steps: Generator[None, None, _Result]) -> _Result:
    """Take all steps of long work and return what they return. Raises what they raise."""
    time = Slice()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await time.go_on()


class Slice:
    """The slice of one piece of long work. It begins when it is made."""

    __slots__ = ("_ends_s", "_loop")

    def __init__(self) -> None:
        """Begin; there must be a running loop."""
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + SLICE_S

    @property
    def is_over(self) -> bool:
        """True if other work should go on now."""
        return self._loop.time() >= self._ends_s

    async def go_on(self) -> None:
        """Return at once within the slice; else let other work go on, and return with the next slice."""
        if self._loop.time() >= self._ends_s:
            await self.next()

    async def next(self) -> None:
        """Let other work go on, and return with the next slice."""
        await _turns(self._loop).turn()
        self._ends_s = self._loop.time() + SLICE_S


class _LoopTurns:
    """The turns of a loop: pieces of long work that wait for a slice, and the short work that goes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._short = 0
        self._held: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until it is this caller's turn: those that wait get one slice each, with free rounds between."""
        mine: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._after_free_rounds, ROUNDS_FREE)
        await mine

    def begin_short(self) -> None:
        """Begin short work."""
        self._short += 1

    def end_short(self) -> None:
        """End it."""
        self._short -= 1
        if not self._short and self._held is not None:
            self._held.cancel()
            self._held = None
            # The round before is its caller's, who goes on.
            self._loop.call_soon(self._give)

    def _after_free_rounds(self, rounds: int) -> None:
        if rounds:
            self._loop.call_soon(self._after_free_rounds, rounds - 1)
        elif self._short:
            self._held = self._loop.call_later(HELD_S_MAX, self._held_enough)
        else:
            self._give()

    def _held_enough(self) -> None:
        self._held = None
        self._give()

    def _give(self) -> None:
        """Give a slice to the first that still waits."""
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._after_free_rounds, ROUNDS_FREE)


_turns_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTurns] = WeakKeyDictionary()


def _turns(loop: asyncio.AbstractEventLoop) -> _LoopTurns:
    turns = _turns_of_loops.get(loop)
    if turns is None:
        turns = _turns_of_loops[loop] = _LoopTurns(loop)
    return turns


class ShortWork:
    """Short work that long work waits for, as a context: a write of small changes until it is on disk."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        """There must be a running loop."""
        self._turns = _turns(asyncio.get_running_loop())

    def __enter__(self) -> None:
        """Begin."""
        self._turns.begin_short()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._turns.end_short()

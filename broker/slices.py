"""Long work on the event loop, in slices of time.

One thread serves all requests, so long work would make every other request wait. So long work is divided into small
steps. After each step it checks whether its slice is over, and if so it waits for the next slice. All long work of a
loop takes turns, one slice at a time. After each slice some rounds of the loop are free of long work, because an
answer takes several rounds::

    round    slice of A, requests │ requests │ requests │ requests │ slice of B, requests │ requests │ …

**Short work** is a change on its way to the disk. While it is in flight, no slice begins for up to HELD_S_MAX. The
reason: the change passes from the loop to a thread and back, and would wait for a slice each time.

**Pieces that are mostly short**, as the reading of a request's body, share a slice: it runs one after the other until it
is over (``in_shared_slices``).

So a request waits for one or two slices. Without long work there are no slices, and without requests a free round
takes microseconds. Work that waits for another event between its steps may get a new slice slightly early, which
does little harm.

Work that can't be divided, because it copies much at once, runs in one other thread (``aside``). Python then lets
the loop run about every half millisecond.

Time is the loop's time. If that is virtual, no slice is ever over, and a run is the same every time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.0005
"""The length of a slice. One step of long work should take less than this."""
ROUNDS_FREE: Final = 8
"""The rounds of the loop between two slices. Without free rounds, a publish beside long work waited for five slices.
The 99th percentile beside pages of messages of 4 MB was 6 to 8 ms with 3 rounds, and 5 to 6 ms with 8."""
HELD_S_MAX: Final = 0.003
"""How long short work may delay long work. It is limited, because a write may wait for the disk. Beside polls that
skip very many messages, the 99th percentile of publishes was 6.5 to 8 ms without this delay, and 4 to 5 ms with it."""

ASIDE_BYTES_MIN: Final = 256 * 1024
ASIDE_ITEMS_MIN: Final = 2_048
"""Work on at least so many bytes or items goes to ``aside``: on the loop it would take more than a slice."""

STEPS_NOW_MAX: Final = 256
"""The steps of small work that run at once (see ``soon``): about 0.3 ms."""

_Result = TypeVar("_Result")

ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="aside")
"""One thread: two would keep the loop waiting twice as long."""


async def aside(work: Callable[[], _Result]) -> _Result:
    """Call ``work`` in the thread and return its result. It must not use data that the loop changes meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(ASIDE, work)


async def in_slices(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps of long work and return their result. Raises their errors."""
    time = Slice()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await time.go_on()


_soon: set[asyncio.Task[None]] = set()
"""Keeps the tasks alive: the event loop itself holds them only weakly."""


def soon(steps: Iterator[object]) -> None:
    """Run the steps of work that no caller waits for: a few now, and the others in slices.

    Freeing is such work: 100,000 small objects hold the loop for 30 to 100 ms.
    """
    for _ in range(STEPS_NOW_MAX):
        try:
            next(steps)
        except StopIteration:
            return
    task = asyncio.get_running_loop().create_task(_all_in_slices(steps))
    _soon.add(task)
    task.add_done_callback(_soon.discard)


async def _all_in_slices(steps: Iterator[object]) -> None:
    time = Slice()
    for _ in steps:
        await time.go_on()


async def in_shared_slices(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps of work that is mostly short, and return their result. Raises their errors.

    Such pieces share slices, one after the other: with a slice each, a busy node would begin only some hundred of them
    in a second. Steps that are left at the end of the shared slice run in slices of their own.
    """
    found = await _turns(asyncio.get_running_loop()).run_shared(steps)
    if found is not None:
        return found[0]
    await Slice().next()
    return await in_slices(steps)


class Slice:
    """The slice of one piece of long work. It begins when the object is made."""

    __slots__ = ("_ends_s", "_loop")

    def __init__(self) -> None:
        """Begin; there must be a running loop."""
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + SLICE_S

    @property
    def is_over(self) -> bool:
        """True if this work should let other work run now."""
        return self._loop.time() >= self._ends_s

    async def go_on(self) -> None:
        """Return at once within the slice; else let other work run, and return with the next slice."""
        if self._loop.time() >= self._ends_s:
            await self.next()

    async def next(self) -> None:
        """Let other work run, and return with the next slice."""
        await _turns(self._loop).turn()
        self._ends_s = self._loop.time() + SLICE_S


class _LoopTurns:
    """The turns of a loop: pieces of long work that wait for a slice, and the short work in flight."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._short = 0
        self._held: asyncio.TimerHandle | None = None
        self._pieces: deque[tuple[Generator[None, None, Any], asyncio.Future[Any]]] = deque()
        self._sharing: asyncio.Task[None] | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Not kept: a value of _turns_of_loops that refers to its key would keep it for ever.
        return asyncio.get_running_loop()

    async def run_shared(self, steps: Generator[None, None, _Result]) -> tuple[_Result] | None:
        """Run steps in a slice shared with others; return their result, or None if some are left."""
        outcome: asyncio.Future[tuple[_Result] | None] = self._loop.create_future()
        self._pieces.append((steps, outcome))
        if self._sharing is None:
            self._sharing = self._loop.create_task(self._share())
        try:
            return await outcome
        finally:
            del outcome  # See ``shield``: an error's traceback keeps this frame.

    async def _share(self) -> None:
        loop = self._loop
        try:
            while self._pieces:
                await self.turn()
                ends_s = loop.time() + SLICE_S
                _run_piece(*self._pieces.popleft(), loop, ends_s)
                while self._pieces and loop.time() < ends_s:
                    _run_piece(*self._pieces.popleft(), loop, ends_s)
        finally:
            self._sharing = None

    async def turn(self) -> None:
        """Wait for this caller's turn. Waiting callers get one slice each, with free rounds in between."""
        loop = self._loop
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._after_free_rounds, loop, ROUNDS_FREE)
        await mine

    def begin_short(self) -> None:
        """Begin short work."""
        self._short += 1

    def end_short(self) -> None:
        """End short work; the last one lets long work go on."""
        self._short -= 1
        if not self._short and self._held is not None:
            self._held.cancel()
            self._held = None
            # ``call_soon``: the caller that ended the short work goes on first.
            self._loop.call_soon(self._give_slice)

    def _after_free_rounds(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        if rounds:
            loop.call_soon(self._after_free_rounds, loop, rounds - 1)
        elif self._short:
            self._held = loop.call_later(HELD_S_MAX, self._held_too_long)
        else:
            self._give_slice()

    def _held_too_long(self) -> None:
        self._held = None
        self._give_slice()

    def _give_slice(self) -> None:
        """Give a slice to the first caller that still waits."""
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                break
        if self._waiting:
            loop = self._loop
            loop.call_soon(self._after_free_rounds, loop, ROUNDS_FREE)


def _run_piece(
    steps: Generator[None, None, Any],
    outcome: asyncio.Future[Any],
    loop: asyncio.AbstractEventLoop,
    ends_s: float,
) -> None:
    """Run steps until they end or the slice is over. Their caller may have been cancelled meanwhile."""
    if outcome.done():
        return
    try:
        next(steps)
        while loop.time() < ends_s:
            next(steps)
    except StopIteration as done:
        outcome.set_result((done.value,))
    except Exception as error:  # noqa: BLE001 - The caller gets it.
        outcome.set_exception(error)
    else:
        outcome.set_result(None)
    finally:
        del outcome


_turns_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTurns] = WeakKeyDictionary()


def _turns(loop: asyncio.AbstractEventLoop) -> _LoopTurns:
    turns = _turns_of_loops.get(loop)
    if turns is None:
        turns = _turns_of_loops[loop] = _LoopTurns()
    return turns


class ShortWork:
    """Short work, as a context manager: a write of small changes until it is on disk. Long work waits for it."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        """Prepare it; there must be a running loop."""
        self._turns = _turns(asyncio.get_running_loop())

    def __enter__(self) -> None:
        """Begin."""
        self._turns.begin_short()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._turns.end_short()

"""Long work beside requests: in a thread if it needs its arguments alone, on the loop if it walks over the node's state.

One thread serves all requests, so long work there would make every other request wait.

**Bodies and replies** are values that do not change. Small ones are decoded and made at once. Large ones are decoded
and made in a thread, each as a whole, one at a time for each caller (``heavy``). Python switches between the threads
every half millisecond. It can't switch within one call of C code, so such calls take bounded parts.

**State** changes while the loop runs, so no thread can read it. A walk over it pauses (``paced``, ``Pace``): after
half a millisecond it lets other work run. All walks of a loop take turns, one slice of time each. An answer takes
several rounds of the loop, so some rounds between two slices have none::

    round    slice of A, requests │ requests │ requests │ requests │ slice of B, requests │ requests │ …

**Short work** is a change on its way to the disk. While it is in flight, no slice begins for up to DEFER_S_MAX: the change
passes from the loop to a thread and back, and would wait for a slice each time.

Walks, heavy work and reads of a disk are fair to callers: of the callers that wait, each gets its turn, however much the
others ask for (``FairQueue``).

Time is the loop's time. If that is virtual, no slice is ever over, and a run is the same every time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from itertools import islice
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

SLICE_S: Final = 0.0005
"""How long a walk over state runs before it lets other work run. One step of it should take less."""
ROUNDS_FREE: Final = 8
"""The rounds of the loop between two slices. Without free rounds, a publish beside long work waited for five slices.
The 99th percentile beside pages of messages of 4 MB was 6 to 8 ms with 3 rounds, and 5 to 6 ms with 8."""
DEFER_S_MAX: Final = 0.003
"""How long short work may delay a walk. It is limited, because a write may wait for the disk. Beside polls that skip very
many messages, the 99th percentile of publishes was 6 to 8 ms without this delay, and 4 to 5 ms with it."""
STEPS_NOW_MAX: Final = 256
"""The steps of small work that run at once (see ``soon``): about 0.3 ms."""

ASIDE_BYTES_MIN: Final = 256 * 1024
ASIDE_ITEMS_MIN: Final = 2_048
"""Storage's work on at least so many bytes or items goes to ``aside``: on the loop it would take more than a slice."""
THREADS: Final = 2
"""Threads for bodies and replies. More would keep the loop waiting longer for the interpreter's lock."""
COUNTED_AT_ONCE: Final = 1_000
"""A thread counts so many small items on the loop together: each call takes 0.1 ms."""
ANSWERED_WITHIN_S: Final = 60.0
"""A thread waits no longer for the loop, which may have ended: the process could not end before the thread."""

Item = TypeVar("Item")
Result = TypeVar("Result")

Take = Callable[[int], object]
"""Called with a number of items before they are read. It raises an error to refuse them."""

ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="aside")
HEAVY: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="heavy")
"""Two pools: storage's work does not wait for bodies."""


async def aside(work: Callable[[], Result]) -> Result:
    """Call storage's ``work`` in a thread and return its result. It must not use data that the loop changes meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(ASIDE, work)


CALLER: Final = ContextVar("caller", default="")
"""The caller of the request that a task serves, by its name in the budgets; empty: the node's own work."""


class FairQueue(Generic[Item]):
    """A queue of all callers. They take turns, and each caller's items keep their order."""

    __slots__ = ("_callers",)

    def __init__(self) -> None:
        """Begin empty."""
        self._callers: OrderedDict[str, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        """Return whether it has an item."""
        return bool(self._callers)

    def put(self, item: Item) -> None:
        """Add an item of the present caller."""
        self._callers.setdefault(CALLER.get(), deque()).append(item)

    def get(self) -> Item:
        """Remove the first item of the caller whose turn it is. There must be one."""
        caller, items = self._callers.popitem(last=False)
        item = items.popleft()
        if items:
            self._callers[caller] = items
        return item


class FairLock:
    """A lock for which callers wait in turns; several tasks may have it at once."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, holders_max: int = 1) -> None:
        """Begin free."""
        self._free = holders_max
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def __aenter__(self) -> None:
        """Wait for it."""
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Pass it on."""
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            following = self._waiting.get()
            if not following.done():
                following.set_result(None)
                return
        self._free += 1


_callers: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""The lock of each caller with heavy work, by the loop and the caller's name."""


async def heavy(caller: str, work: Callable[..., Result], take: Take | None = None) -> Result:
    """Call ``work`` in a thread, one at a time for each caller, and return its result. Raises its errors.

    The work must not use data that the loop changes meanwhile. If this call is cancelled, it still waits for the end of
    the work: until then its memory is in use, and counted.

    Args:
        caller: the caller's name in the budgets.
        work: is called without arguments; with ``take``, with a function that counts items.
        take: counts items before they are read, and raises an error to refuse them. It is called on the loop.
    """
    loop = asyncio.get_running_loop()
    counted = None if take is None else _CountedOnLoop(loop, take)
    lock = _callers.setdefault((id(loop), caller), asyncio.Lock())
    async with lock:
        running = loop.run_in_executor(HEAVY, *((work,) if counted is None else (work, counted)))
        try:
            result: Result = await asyncio.shield(running)
        except asyncio.CancelledError:
            if counted is not None:
                counted.stop()
            await asyncio.wait((running,))
            running.exception()  # Retrieved here, because no caller is left.
            raise
        finally:
            del running  # See ``shield``: an error's traceback keeps this frame.
    if counted is not None:
        counted.end()
    return result


class _CountedOnLoop:
    """Counts items for a thread, by a function that runs on the loop. It counts small numbers together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Take) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._take = take
        self._uncounted = 0
        self._is_over = False

    def __call__(self, count: int) -> None:
        """Count items before they are read. Raises the errors of the function."""
        self._uncounted += count
        if self._uncounted < COUNTED_AT_ONCE:
            return
        if threading.get_ident() == self._loop_thread:  # A virtual loop has no threads.
            self.end()
            return
        counted: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(self._count, counted)
            counted.result(ANSWERED_WITHIN_S)
        finally:
            del counted  # See ``shield``.

    def end(self) -> None:
        """Count the rest."""
        if self._is_over:
            raise ConnectionError("The client has gone.")
        count, self._uncounted = self._uncounted, 0
        if count:
            self._take(count)

    def stop(self) -> None:
        """Refuse all further items, because no caller is left."""
        self._is_over = True

    def _count(self, counted: Future[None]) -> None:
        try:
            self.end()
        except Exception as error:  # noqa: BLE001 - The thread raises it.
            counted.set_exception(error)
        else:
            counted.set_result(None)


class Pace:
    """The pace of one walk over state. Its slice begins when the object is made."""

    __slots__ = ("_ends_s", "_loop")

    def __init__(self) -> None:
        """Begin; there must be a running loop."""
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + SLICE_S

    async def step(self) -> None:
        """Return at once within the slice; else let other work run, and return with the next slice."""
        if self._loop.time() >= self._ends_s:
            await self.pause()

    async def pause(self) -> None:
        """Let other work run, and return with the next slice."""
        walks = _walks_of(self._loop)
        async with walks.turn:
            for _ in range(ROUNDS_FREE):
                await asyncio.sleep(0)
            if walks.short:
                walks.deferred = self._loop.create_future()
                await asyncio.wait((walks.deferred,), timeout=DEFER_S_MAX)
                walks.deferred = None
        self._ends_s = self._loop.time() + SLICE_S


class _Walks(threading.local):
    """The loop of this thread that last had long walks; the lock by which they take turns, and the short work beside them."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin with another loop."""
        self.loop = loop
        self.turn = FairLock()
        self.short = 0
        self.deferred: asyncio.Future[None] | None = None
        """Done when the short work for which the next slice waits has ended."""


_walks = _Walks()


def _walks_of(loop: asyncio.AbstractEventLoop) -> _Walks:
    if _walks.loop is not loop:
        _walks.begin(loop)
    return _walks


class ShortWork:
    """Short work, as a context manager: a write of small changes until it is on disk. Walks wait for it."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        """Prepare it; there must be a running loop."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        """Begin."""
        _walks_of(self._loop).short += 1

    def __exit__(self, *_: object) -> None:
        """End. The last one lets a walk go on, after the caller that ended it."""
        walks = _walks_of(self._loop)
        walks.short = max(walks.short - 1, 0)
        if not walks.short and walks.deferred is not None and not walks.deferred.done():
            walks.deferred.set_result(None)


async def paced(items: Iterable[Item]) -> AsyncGenerator[Item, None]:
    """Yield items, and let other work run between them."""
    pace = Pace()
    for item in items:
        yield item
        await pace.step()


async def run_paced(steps: Iterable[object]) -> None:
    """Run all steps, and let other work run between them."""
    async for _ in paced(steps):
        pass


_soon: set[asyncio.Task[None]] = set()
"""Keeps the tasks alive: the event loop itself holds them only weakly."""


def soon(steps: Iterator[object]) -> None:
    """Run the steps of work that no caller waits for: a few now, and the others with pauses.

    Freeing is such work: 100,000 small objects block the loop for 30 to 100 ms.
    """
    if sum(1 for _ in islice(steps, STEPS_NOW_MAX)) < STEPS_NOW_MAX:
        return
    task = asyncio.get_running_loop().create_task(run_paced(steps))
    _soon.add(task)
    task.add_done_callback(_soon.discard)

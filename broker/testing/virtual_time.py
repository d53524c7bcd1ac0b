"""Virtual time: a clock that moves only when no callback is ready.

The event loop runs the ready callbacks. When none is ready, time jumps to the next timer. So an hour of waiting takes
no real time, and runs with one seed are all the same. A program that waits for an event that can never come gets
``Hang``, and does not hang::

    ready callbacks ──▶ run them, at one moment
         none, timers ──▶ jump to the earliest
         none, none   ──▶ Hang

Such a loop has no threads, files or sockets. Code that needs them uses a simulated port instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from typing_extensions import override

from broker import long_work
from broker.clock import Jumps
from broker.shield import bare

Result = TypeVar("Result")

EPOCH_MS = 1_600_000_000_000
"""The time at which virtual wall clocks begin, ms since 1970."""


class Hang(Exception):
    """All tasks wait, and there is no timer that could wake one; or virtual time has come to its bound."""


class _NoSelector:
    """Takes the place of the selector: it waits for no socket, and only lets time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Hang(f"all tasks wait at {self._loop.time():.3f} s, and there is no timer")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is virtual."""

    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]
    _clock_resolution: float
    _selector: _NoSelector

    def __init__(self) -> None:
        """Begin at 0 s."""
        super().__init__()
        self._now_s = 0.0
        self.end_s = math.inf
        """The bound of virtual time: the loop raises Hang instead of going on behind it."""
        self._clock_resolution = 1e-6
        self._selector = _NoSelector(self)

    @override
    def time(self) -> float:
        """Return virtual seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises Hang at the bound."""
        if self._now_s + seconds > self.end_s:
            raise Hang(f"it is not over after {self.end_s:g} s of virtual time")
        self._now_s += max(seconds, 0.0)

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> NoReturn:
        raise RuntimeError("no thread may call into a virtual loop")

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Close a generator that was left early. Asyncio would call as another thread does, which is refused here."""
        self._asyncgens.discard(agen)
        if not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())

    @override
    def run_in_executor(
        self, executor: object, func: Callable[..., Result], *args: object
    ) -> asyncio.Future[Result]:
        """Run long work at once, as it takes no virtual time.

        Refuse all other executors: the time of a thread is not virtual.
        """
        if executor not in (long_work.ASIDE, long_work.HEAVY):
            raise RuntimeError("there are no threads in a virtual loop")
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - The waiting task gets the error, as from a thread.
            future.set_exception(error)
        return future


class VirtualClock:
    """The Clock port on a virtual loop. Several clocks may share a loop, each with its own error."""

    def __init__(self, loop: VirtualLoop, *, wall_ms: int = EPOCH_MS) -> None:
        """Show ``wall_ms`` when the loop begins."""
        self._loop = loop
        self._offset_ms = float(wall_ms)
        self._stepped_at_s = 0.0
        self._jumps = Jumps()

    def now_ms(self) -> int:
        """Return the wall clock, ms since 1970."""
        return int(self._offset_ms + self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def steady_ms(self) -> float:
        """Return the ms since the wall clock was last stepped."""
        return (self._loop.time() - self._stepped_at_s) * 1000

    def patient_ms(self, life_ms: float) -> int:
        """Return the wall clock, less its steps forward in the last ``life_ms``."""
        boot_ms = self._loop.time() * 1000
        return int(boot_ms + self._jumps.least(self._offset_ms, boot_ms - life_ms))

    def step(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator does."""
        self._jumps.note(self._loop.time() * 1000, self._offset_ms)
        self._offset_ms += by_ms
        self._stepped_at_s = self._loop.time()


@contextlib.contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """Give a virtual loop; at the end cancel the tasks that still run in it."""
    loop = VirtualLoop()
    try:
        yield loop
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


def simulate(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run ``main(loop)`` in virtual time and return its result. Raises Hang."""
    with virtual_loop() as loop:
        return loop.run_until_complete(main(loop))


async def pass_time(seconds: float = 0.0, result: Result | None = None) -> Result | None:
    """Let virtual time pass, then return ``result``. Only for virtual loops: a test in real time must not sleep."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "pass_time needs a virtual loop"
    return await asyncio.sleep(seconds, result)


async def within(seconds: float, work: Awaitable[Result], state: Callable[[], str]) -> Result:
    """Await ``work`` for at most ``seconds``. The error of a time-out has the text of ``state()``."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise AssertionError(f"not within {seconds} s: {state()}") from bare(error)

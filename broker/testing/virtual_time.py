"""Virtual time: a clock that moves only when there is nothing left to do.

The event loop runs what is ready; when nothing is, time jumps to the next timer. So an hour of waiting
costs nothing, a run with one seed is the same every time, and a program that waits for something that
will never happen is told so instead of hanging::

    ready callbacks ──▶ run them, at one moment
         none, timers ──▶ jump to the earliest
         none, none   ──▶ Hang

There are no threads, files or sockets in such a loop: what needs them is replaced by its simulated port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from broker import slices

Result = TypeVar("Result")

EPOCH_MS = 1_600_000_000_000
"""Where virtual wall clocks begin, ms since 1970."""


class Hang(Exception):
    """Everything waits, and nothing can ever happen."""


class _NoSelector:
    """Stands where a loop waits for the world: here only time passes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Hang(f"nothing is left to happen at {self._loop.time():.3f} s")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is virtual."""

    _clock_resolution: float
    _selector: _NoSelector

    def __init__(self) -> None:
        """Begin at 0 s."""
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-6
        self._selector = _NoSelector(self)

    @override
    def time(self) -> float:
        """Return virtual seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += max(seconds, 0.0)

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> NoReturn:
        raise RuntimeError("no thread may call into a virtual loop")

    @override
    def run_in_executor(
        self, executor: object, func: Callable[..., Result], *args: object
    ) -> asyncio.Future[Result]:
        """Do at once what is done aside, since it takes no virtual time. Refuse all else: a thread's time is not virtual."""
        if executor is not slices.ASIDE:
            raise RuntimeError("there are no threads in a virtual loop")
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - As a thread does, it gives the error to those who wait.
            future.set_exception(error)
        return future


class VirtualClock:
    """The Clock port on a virtual loop. Several may share a loop, each wrong in its own way."""

    def __init__(self, loop: VirtualLoop, *, wall_ms: int = EPOCH_MS) -> None:
        """Show ``wall_ms`` when the loop begins."""
        self._loop = loop
        self._offset_ms = float(wall_ms)
        self._stepped_at_s = 0.0

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
        """Return for how many ms the wall clock was not stepped."""
        return (self._loop.time() - self._stepped_at_s) * 1000

    def step(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator does."""
        self._offset_ms += by_ms
        self._stepped_at_s = self._loop.time()


@contextlib.contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """Give a virtual loop, and cancel what still runs in it at the end."""
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
    """Let virtual time pass, then return ``result``. Elsewhere this would be waiting by sleeping."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "time passes by itself out here"
    return await asyncio.sleep(seconds, result)


async def within(seconds: float, what: Awaitable[Result], state: Callable[[], str]) -> Result:
    """Await ``what`` for at most so long; the error tells ``state()``, what it waited in."""
    try:
        async with asyncio.timeout(seconds):
            return await what
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {state()}") from None

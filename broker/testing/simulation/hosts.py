"""The processes of a simulated cluster, and the event loop that can pause or kill each of them.

A whole cluster runs in one event loop, so the loop must know the process of each step. Every callback of asyncio has a
context, and a task passes its context on to the callbacks and tasks that it starts. So this module sets one context
variable when a process starts, and all later steps of the process have it. Before each step the loop reads it::

    a step of a running process     the loop runs it
    a step of a paused process      the loop keeps it, in order, until the process resumes
    a step of a dead process        the loop drops it

So a crash is simple: it happens between two steps, at some await, and no further step runs. No ``finally`` block runs,
and the process sends nothing more. Bytes that it sent before are still in flight. A process that resumes finds the
same as a real process after a stop: its timers are overdue, bytes have arrived, and its sessions are over.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from typing_extensions import override

from broker.testing.virtual_time import Hang, VirtualLoop

Result = TypeVar("Result")

ITERATIONS_AT_ONCE_MAX = 2_000_000
"""The most iterations of the loop at one moment of virtual time. With more the program spins."""


class SimulatedProcess:
    """One process of a node. The loop can defer its steps.

    Attributes:
        name: its name in reports.
        machine: the machine on which it runs, by its name in the network.
    """

    def __init__(self, name: str, machine: str) -> None:
        """Start the process."""
        self.name = name
        self.machine = machine
        self.is_dead = False
        self.tasks: dict[asyncio.Future[Any], None] = {}
        """The tasks of the process: a dict is a set that keeps its order.

        It keeps the tasks of a dead process from garbage collection, which would run their ``finally`` blocks."""
        self._deferred: deque[asyncio.Handle] | None = None
        self.context = copy_context()
        self.context.run(RUNNING.set, self)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HostLoop), "processes need a loop that knows them"
        loop.processes.append(self)

    @property
    def is_paused(self) -> bool:
        """Return whether it is paused."""
        return self._deferred is not None

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task that belongs to this process."""
        context = self.context.copy()
        return context.run(asyncio.get_running_loop().create_task, work)

    def pause(self) -> None:
        """Defer all further steps."""
        if self._deferred is None:
            self._deferred = deque()

    def resume(self) -> None:
        """Go on, first with the deferred steps."""
        deferred, self._deferred = self._deferred, None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HostLoop)
        loop.go_on(deferred or ())

    def die(self) -> None:
        """Drop all further steps."""
        self.is_dead = True
        self._deferred = None

    def defer(self, handle: asyncio.Handle) -> bool:
        """Keep or drop a step that must not run now, and return True; return False if it may run."""
        if self.is_dead:
            return True
        if self._deferred is None:
            return False
        self._deferred.append(handle)
        return True

    def bury(self) -> None:
        """Let the remaining tasks run again, so that they can be cancelled at the end of the simulation."""
        self.is_dead = False
        self._deferred = None


RUNNING: ContextVar[SimulatedProcess | None] = ContextVar("RUNNING", default=None)
"""The process of the present step; None: the step belongs to no process."""


class HostLoop(VirtualLoop):
    """A virtual loop that knows the process of each step."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        """Begin at 0 s."""
        super().__init__()
        self.steps = 0
        self.processes: list[SimulatedProcess] = []
        self._iterations_at_once = 0

    @override
    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Result]:
        """Start a task; it belongs to the process that starts it. Python 3.14 has more options, such as eager_start."""
        task: asyncio.Task[Result] = asyncio.Task(
            coro,
            loop=self,
            name=None if name is None else str(name),
            context=context,
            **options,
        )
        process = RUNNING.get() if context is None else context.get(RUNNING)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    def go_on(self, handles: deque[asyncio.Handle] | tuple[()]) -> None:
        """Schedule deferred steps, before all others."""
        self._ready.extendleft(reversed(handles))

    def _run_once(self) -> None:
        """Run all steps that are ready. If none is ready, jump to the next timer first."""
        ready = self._ready
        if not ready:
            self._jump()
        self._iterations_at_once += 1
        if self._iterations_at_once > ITERATIONS_AT_ONCE_MAX:
            self._iterations_at_once = 0  # What is cancelled now has iterations of its own.
            raise Hang(f"the program spins at {self.time():.3f} s: no time passes")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # noqa: SLF001
                continue
            context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
            process = context.get(RUNNING)
            if process is None or not process.defer(handle):
                self.steps += 1
                handle._run()  # noqa: SLF001

    def _jump(self) -> None:
        scheduled = self._scheduled
        self._forget_cancelled(scheduled)
        while scheduled and scheduled[0]._cancelled:  # noqa: SLF001
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
            self._timer_cancelled_count -= 1
        if not scheduled:
            if self._stopping:  # type: ignore[attr-defined]
                return
            raise Hang(f"all tasks wait at {self.time():.3f} s, and there is no timer")
        self._iterations_at_once = 0
        self.advance(scheduled[0].when() - self.time())
        due = self.time() + self._clock_resolution
        while scheduled and scheduled[0].when() <= due:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
            if timer._cancelled:  # noqa: SLF001
                self._timer_cancelled_count -= 1
            self._ready.append(timer)

    def _forget_cancelled(self, scheduled: list[asyncio.TimerHandle]) -> None:
        """Remove cancelled timers, if there are many: most timers are unneeded time-outs, and they slow the heap."""
        if self._timer_cancelled_count < 200 or self._timer_cancelled_count * 2 < len(scheduled):
            return
        kept = []
        for timer in scheduled:
            if timer._cancelled:  # noqa: SLF001
                timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
            else:
                kept.append(timer)
        scheduled[:] = kept
        heapq.heapify(scheduled)
        self._timer_cancelled_count = 0

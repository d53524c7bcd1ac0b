"""Machines and processes of a simulated cluster, and the loop that lets each of them stand still or die.

All of a cluster runs in one event loop, so something must know whose each step is. Every callback of
asyncio carries a context, every task hands its own on to what it begins; so one context variable, set
where a process starts, marks all that ever follows from it. Before each step the loop looks at it::

    step of a process that runs     done
    step of one that is paused      kept, in order, until it goes on
    step of one that is dead        dropped

That is all there is to a crash: between two steps, which is at some await, nothing follows any more. No
``finally`` runs and nothing is said; what was sent before is still on its way. A paused process sees on
waking what a stopped one does: its timers are overdue, its bytes are there, and its sessions are gone.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from typing_extensions import TypeVarTuple, Unpack, override

from broker.testing.virtual_time import Hang, VirtualLoop

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

TURNS_AT_ONCE_MAX = 2_000_000
"""After so many steps at one moment of virtual time something spins."""


class SimulatedProcess:
    """Whoever's steps can be held back: a node's process, in one of its lives.

    Attributes:
        name: what reports call it.
        machine: where it runs; the network knows it by that.
    """

    def __init__(self, name: str, machine: str) -> None:
        """Begin to run."""
        self.name = name
        self.machine = machine
        self.is_dead = False
        self.tasks: dict[asyncio.Future[Any], None] = {}
        """A set in the order of its members. It keeps what a dead process was doing from being collected,
        for that would run its ``finally`` blocks after all."""
        self._held: deque[asyncio.Handle] | None = None
        self.context = copy_context()
        self.context.run(RUNNING.set, self)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HostLoop), "processes need a loop that knows them"
        loop.processes.append(self)

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._held is not None

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin to work in this one's name."""
        context = self.context.copy()
        return context.run(asyncio.get_running_loop().create_task, work)

    def pause(self) -> None:
        """Stand still."""
        if self._held is None:
            self._held = deque()

    def resume(self) -> None:
        """Go on, with all that should have been done meanwhile."""
        held, self._held = self._held, None
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HostLoop)
        loop.go_on(held or ())

    def die(self) -> None:
        """Do nothing more."""
        self.is_dead = True
        self._held = None

    def hold(self, handle: asyncio.Handle) -> bool:
        """Take a step that must not be done now; False if it may."""
        if self.is_dead:
            return True
        if self._held is None:
            return False
        self._held.append(handle)
        return True

    def bury(self) -> None:
        """At the end of the world: let what is left end as cancelled tasks do."""
        self.is_dead = False
        self._held = None


RUNNING: ContextVar[SimulatedProcess | None] = ContextVar("RUNNING", default=None)
"""Whose step this is; None is the world's."""


class HostLoop(VirtualLoop):
    """A virtual loop that knows whose each step is."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        """Begin at 0 s."""
        super().__init__()
        self.steps = 0
        self.processes: list[SimulatedProcess] = []
        self._turns_at_once = 0

    @override
    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Result]:
        """Begin a task; it belongs to the process that begins it."""
        task: asyncio.Task[Result] = asyncio.Task(
            coro,  # As the base class takes it.
            loop=self,
            name=None if name is None else str(name),
            context=context,
        )
        process = RUNNING.get() if context is None else context.get(RUNNING)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    @override
    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call soon: there is one thread. Asyncio closes forgotten generators by this."""
        return self.call_soon(callback, *args, context=context)

    def go_on(self, handles: deque[asyncio.Handle] | tuple[()]) -> None:
        """Do steps that were held back, before all others."""
        self._ready.extendleft(reversed(handles))

    def _run_once(self) -> None:
        """Do every step that is ready; if there is none, go to the next moment at which there is."""
        ready = self._ready
        if not ready:
            self._jump()
        self._turns_at_once += 1
        if self._turns_at_once > TURNS_AT_ONCE_MAX:
            raise Hang(f"something spins at {self.time():.3f} s")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # noqa: SLF001
                continue
            context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
            process = context.get(RUNNING)
            if process is None or not process.hold(handle):
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
            raise Hang(f"nothing is left to happen at {self.time():.3f} s")
        self._turns_at_once = 0
        self.advance(scheduled[0].when() - self.time())
        due = self.time() + self._clock_resolution
        while scheduled and scheduled[0].when() <= due:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
            if timer._cancelled:  # noqa: SLF001
                self._timer_cancelled_count -= 1
            self._ready.append(timer)

    def _forget_cancelled(self, scheduled: list[asyncio.TimerHandle]) -> None:
        """Most timers are time-outs that were not needed; too many of them make every other slow."""
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

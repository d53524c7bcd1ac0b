"""Run a simulation in its own world: its own loop, random numbers and trace; and end it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from unittest import mock

from broker.testing.simulation.chance import seeded
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.trace import Trace
from broker.testing.virtual_time import Hang

Result = TypeVar("Result")

END_S: Final = 5.0
ENDS_MAX: Final = 10
"""How often the remaining tasks are cancelled: a task may go on to clean up, and needs another cancellation."""


def in_world(
    seed: int | str,
    main: Callable[[SimLoop, Trace], Coroutine[Any, Any, Result]],
    *,
    lasts_s_max: float = math.inf,
) -> Result:
    """Run ``main`` in its own world, and return its result. Raises Hang, also after ``lasts_s_max`` of virtual time."""
    trace = Trace()
    with seeded(seed), trace.listening():
        collected = gc.isenabled()
        gc.disable()  # The moment of a collection depends on the whole past of this process.
        gc.freeze()
        try:
            return _run(seed, main, trace, lasts_s_max)
        finally:
            with mock.patch.object(sys, "unraisablehook", _ignore):
                # Generators and the like of dead processes raise now that they were interrupted. Ignore these errors.
                gc.collect()
            gc.unfreeze()
            if collected:
                gc.enable()


def _run(
    seed: int | str,
    main: Callable[[SimLoop, Trace], Coroutine[Any, Any, Result]],
    trace: Trace,
    lasts_s_max: float,
) -> Result:
    """Run ``main`` in a new loop, and end the loop. This function keeps no object of the run alive."""
    loop = SimLoop(seed)
    loop.set_exception_handler(lambda _, about: trace.unhandled(about))
    loop.end_s = lasts_s_max
    work = main(loop, trace)
    try:
        return loop.run_until_complete(work)
    except Hang as hang:
        raise Hang(f"{hang}; {_place(work)}") from None
    finally:
        loop.end_s = math.inf
        with mock.patch.object(sys, "unraisablehook", _ignore), warnings.catch_warnings():
            # A coroutine that starts a task in its clean-up makes a coroutine that never runs.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            _end(loop)
            _close(loop)
        loop.processes.clear()


def _place(work: Any) -> str:
    """Return where the code of a test waits: the last place that is neither of this package nor of asyncio."""
    place = "the test has ended"
    while (frame := getattr(work, "cr_frame", None)) is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in {"broker", "asyncio"}:
            place = f"the test waits at {frame.f_code.co_filename}:{frame.f_lineno}"
        work = work.cr_await
    return place


def _ignore(_: object) -> None:
    """Ignore an error that no code can handle."""


def _close(loop: SimLoop) -> None:
    """Close the coroutines that did not end, so that they can't disturb a later world."""
    # Without this a coroutine that starts a task in its clean-up would get a new loop, which no code closes.
    asyncio.set_event_loop(None)
    for task in asyncio.all_tasks(loop):
        work = task.get_coro()
        with contextlib.suppress(Exception):  # A clean-up may need a loop, and there is none.
            work.close()


def _end(loop: SimLoop) -> None:
    """Cancel the remaining tasks, also those of dead processes, and close the loop. Ignore all errors."""
    loop.set_exception_handler(lambda *_: None)
    for process in loop.processes:
        process.bury()
    for _ in range(ENDS_MAX):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        with contextlib.suppress(Hang):  # A task that spins goes on to do so.
            loop.run_until_complete(asyncio.wait(left, timeout=END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()

"""A world of its own for a simulation: its loop, its chances, its log; and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from unittest import mock

from broker.testing.simulation.chance import seeded
from broker.testing.simulation.loop import SimLoop
from broker.testing.simulation.trace import Trace

Result = TypeVar("Result")

END_S: Final = 5.0
ENDS_MAX: Final = 10
"""How often what is left is cancelled: some of it cleans up, and must be told again."""


def in_world(
    seed: int | str, main: Callable[[SimLoop, Trace], Coroutine[Any, Any, Result]]
) -> Result:
    """Run ``main`` in a world of its own, and return its result. Raises Hang."""
    trace = Trace()
    with seeded(seed), trace.listening():
        collected = gc.isenabled()
        gc.disable()  # When it runs depends on all that this process ever did.
        gc.freeze()
        try:
            return _lived(seed, main, trace)
        finally:
            with mock.patch.object(sys, "unraisablehook", _not_told):
                # What belonged to the dead and is no task says now that it was interrupted.
                gc.collect()
            gc.unfreeze()
            if collected:
                gc.enable()


def _lived(
    seed: int | str, main: Callable[[SimLoop, Trace], Coroutine[Any, Any, Result]], trace: Trace
) -> Result:
    """Run ``main`` from the beginning of its world to the end; nothing here keeps anything of it."""
    loop = SimLoop(seed)
    loop.set_exception_handler(lambda _, about: trace.unhandled(about))
    try:
        return loop.run_until_complete(main(loop, trace))
    finally:
        with mock.patch.object(sys, "unraisablehook", _not_told):
            _end(loop)
            _close(loop)
        loop.processes.clear()


def _not_told(_: object) -> None:
    """Hear of an error that nobody can be told of."""


def _close(loop: SimLoop) -> None:
    """Close what did not end even so: nothing of it may be heard of in a later world."""
    # Else what begins a task while it cleans up is given a new loop, which nobody closes.
    asyncio.set_event_loop(None)
    for task in asyncio.all_tasks(loop):
        work = task.get_coro()
        with contextlib.suppress(Exception):  # Cleaning up needs a loop, and there is none.
            work.close()


def _end(loop: SimLoop) -> None:
    """Let whatever is left end, the dead included; nobody looks any more."""
    loop.set_exception_handler(lambda *_: None)
    for process in loop.processes:
        process.bury()
    for _ in range(ENDS_MAX):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()

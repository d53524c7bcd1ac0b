"""Repeat work that fails, and keep no error of it. The door of tenacity.

tenacity keeps the last outcome in the state of its retries. The traceback of an error keeps the frames through which it
went and, from Python 3.12 on, those that called them. That is a cycle: it would hold the body of a request until the next
garbage collection. So here an attempt keeps its end in a list. tenacity decides by that, and sees and raises no error;
the last error is raised behind it.
Most work succeeds at once, and then costs no retry: tenacity takes 25 us a call.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState

from broker.user_code import Ended

Result = TypeVar("Result")


def doubled_s(attempts: int, first_s: float, most_s: float) -> float:
    """Return the longest pause in seconds after this number of failed attempts, at least 1: it doubles."""
    return min(most_s, first_s * 2.0 ** min(attempts - 1, 30))


def jittered_s(attempts: int, first_s: float, most_s: float, rng: random.Random) -> float:
    """Return such a pause, drawn from the upper half: processes that failed together do not return together.

    It draws from the caller's source of chance, so that a simulated run can be repeated.
    """
    return doubled_s(attempts, first_s, most_s) * rng.uniform(0.5, 1.0)


async def repeat(
    work: Callable[[], Awaitable[Result]],
    pause_s: Callable[[Exception, int], float | None],
    sleep: Callable[[float], Awaitable[None]],
) -> Result:
    """Return what ``work`` returns, as soon as it does not fail.

    Args:
        work: makes one attempt.
        pause_s: returns the pause in seconds after an error, which is that of the attempt of this number, from 1 on.
            None: raise the error. It must not keep the error.
        sleep: waits so many seconds.
    """
    made = [await _ended(work)]
    if made[0].error is not None:
        await _repeated(made, work, pause_s, sleep)
    # No name of this frame, which is in the error's traceback, has the error.
    return made.pop().result()


async def _repeated(
    made: list[Ended[Result]],
    work: Callable[[], Awaitable[Result]],
    pause_s: Callable[[Exception, int], float | None],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Go on after a first attempt that failed. ``made`` has the end of the last attempt, here and behind this call."""
    pauses: list[float] = []
    # An object of tenacity is a cycle, so it lives on for a while. It reaches the request through this list alone.
    kept = [pause_s]

    async def attempt() -> None:
        if not made:
            made.append(await _ended(work))

    def again(state: RetryCallState) -> bool:
        error = made[0].error
        try:
            seconds = kept[0](error, state.attempt_number) if isinstance(error, Exception) else None
        finally:
            del error
        if seconds is not None:
            pauses.append(seconds)
            made.clear()
        return seconds is not None

    try:
        await AsyncRetrying(retry=again, wait=lambda _: pauses.pop(), sleep=sleep)(attempt)
    finally:
        kept.clear()


async def _ended(work: Callable[[], Awaitable[Result]]) -> Ended[Result]:
    try:
        return Ended(await work())
    except Exception as error:  # noqa: BLE001 - The value carries it.
        return Ended(None, error)

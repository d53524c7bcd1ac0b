"""Repeat work that fails, and keep no error of it. The door of tenacity.

tenacity keeps the last outcome in the state of its retries. The traceback of an error that it raises keeps that state,
which is a cycle: it would hold the body of a request until the next garbage collection. So here an attempt ends with a
value that carries its error. tenacity decides by that value, and raises nothing; the last error is raised behind it.
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
        made = [await _repeated(made, work, pause_s, sleep)]
    return (
        made.pop().result()
    )  # No name of this frame, which is in the error's traceback, has the error.


async def _repeated(
    made: list[Ended[Result]],
    work: Callable[[], Awaitable[Result]],
    pause_s: Callable[[Exception, int], float | None],
    sleep: Callable[[float], Awaitable[None]],
) -> Ended[Result]:
    """Go on after a first attempt that failed, which is taken from ``made``. Return how the last one ended."""
    pauses: list[float] = []
    # An object of tenacity is a cycle, so it lives on for a while. It reaches the request through this list alone.
    kept = [pause_s]

    async def attempt() -> Ended[Result]:
        return made.pop() if made else await _ended(work)

    def again(state: RetryCallState) -> bool:
        error = state.outcome.result().error if state.outcome is not None else None
        try:
            seconds = kept[0](error, state.attempt_number) if error is not None else None
        finally:
            del error
        if seconds is not None:
            pauses.append(seconds)
        return seconds is not None

    try:
        # The object has no name here, for it keeps the last outcome.
        return await AsyncRetrying(retry=again, wait=lambda _: pauses.pop(), sleep=sleep)(attempt)
    finally:
        kept.clear()


async def _ended(work: Callable[[], Awaitable[Result]]) -> Ended[Result]:
    try:
        return Ended(await work())
    except Exception as error:  # noqa: BLE001 - The value carries it.
        return Ended(None, error)

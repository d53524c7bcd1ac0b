"""Repeat work that fails, and keep no error of it: its traceback may hold the body of a request."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
    attempts = 0
    while True:
        attempts += 1
        try:
            return await work()
        except Exception as error:
            seconds = pause_s(error, attempts)
            if seconds is None:
                raise
        await sleep(seconds)

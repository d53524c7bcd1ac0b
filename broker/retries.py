"""Repeat work that fails, and keep no error of it.

A retry library keeps the last error in the state of its retries, and the error's traceback keeps that state: a cycle,
which holds the body of a request until the next garbage collection. This loop names no error while it waits, and none
when it raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


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
        try:
            return await work()
        except Exception as error:
            attempts += 1
            seconds = pause_s(error, attempts)
            if seconds is None:
                raise
        await sleep(seconds)

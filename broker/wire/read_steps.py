"""Read large bodies in steps, so that other work can run between them.

A reader of a large body is a generator. It pauses after about a millisecond of work, and returns its result at the end::

    steps = avro.publish_request_steps(body, messages_max=100_000)
    finish(steps)                 all at once, for a caller without other work
    await read(request, steps)    step by step, in slices of time, with other work between them (api/body_reader.py)

Counts of bytes and items decide where a step ends, never a clock. So two runs take the same steps.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from typing import Final, TypeVar

_Value = TypeVar("_Value")

Steps = Generator[None, None, _Value]
"""Does a part of the work at each ``next``, and returns the result at the end."""

Take = Callable[[int], object]
"""Called with a number of items before they are read. It raises an error to refuse them."""

STEP_BYTES: Final = 512 * 1024
"""The maximum number of bytes that one step copies."""


def finish(steps: Steps[_Value]) -> _Value:
    """Take all steps at once and return the result. Raises the errors of the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: _Value = done.value
            return value


def free(_: int) -> None:
    """Refuse nothing; for callers that do not count items."""


def copied(body: bytes, start: int, end: int) -> Steps[bytes]:
    """Return ``body[start:end]``, copied in steps."""
    view = memoryview(body)
    copy = io.BytesIO()
    for at in range(start, end, STEP_BYTES):
        copy.write(view[at : min(at + STEP_BYTES, end)])
        yield
    return copy.getvalue()  # It returns the written bytes without another copy.

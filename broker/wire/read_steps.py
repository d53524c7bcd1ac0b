"""Reading large bodies in steps, so that those who have other work to do are not kept from it.

A reader of a large body is a generator. It stops after about a millisecond of work, and returns what it has read::

    steps = avro.publish_request_steps(body, messages_max=100_000)
    finish(steps)                 all at once: for those who have nothing else to do
    await read(request, steps)    step by step, in slices of time, with others between (api/decoding.py)

Where a step ends is decided by counts of bytes and items, never by a clock: two runs take the same steps.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from typing import Final, TypeVar

_Value = TypeVar("_Value")

Steps = Generator[None, None, _Value]
"""Does a part of the work at each ``next``, and returns the result."""

Take = Callable[[int], object]
"""Is told how many items will be read, before they are. It raises to refuse them."""

STEP_BYTES: Final = 512 * 1024
"""How many bytes one step copies at most."""


def finish(steps: Steps[_Value]) -> _Value:
    """Take all steps at once and return the result. Raises what the steps raise."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: _Value = done.value
            return value


def free(_: int) -> None:
    """Refuse nothing, where nothing is counted."""


def copied(body: bytes, start: int, end: int) -> Steps[bytes]:
    """Return ``body[start:end]``, copied in steps."""
    view = memoryview(body)
    copy = io.BytesIO()
    for at in range(start, end, STEP_BYTES):
        copy.write(view[at : min(at + STEP_BYTES, end)])
        yield
    return copy.getvalue()  # It gives the bytes away that were written, without another copy.

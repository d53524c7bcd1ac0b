"""Reads the bodies of requests: small ones at once, larger ones in slices of time, with other requests between.

The items of a larger body are counted as held for its request before they are read.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

from broker.http.budget import BudgetKind
from broker.http.request import Request
from broker.model import Snapshot
from broker.slices import Slice, in_slices
from broker.wire.read_steps import Steps, Take, finish, free
from broker.wire.snapshotjson import body_steps

AT_ONCE_BYTES_MAX: Final = 4 * 1024
"""Bodies up to this long are read at once: it takes 2 ms at most, and mostly a hundredth of that."""

_Value = TypeVar("_Value")


def counting(request: Request) -> Take:
    """Return what counts the items of a request's body."""
    if len(request.body) <= AT_ONCE_BYTES_MAX:
        return free
    return partial(request.hold.take, BudgetKind.ITEMS)


async def read(request: Request, steps: Steps[_Value]) -> _Value:
    """Take the steps that read a request's body and return what they return. Raises what they raise."""
    if len(request.body) <= AT_ONCE_BYTES_MAX:
        return finish(steps)
    # Others may begin in this round, too: together they get one slice.
    await Slice().next()
    return await in_slices(steps)


async def read_snapshot(request: Request) -> Snapshot:
    """Read a request's body that has a snapshot alone. Raises BadRequest, BodyTooLarge."""
    return await read(request, body_steps(request.body, take=counting(request)))

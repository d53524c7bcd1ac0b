"""Read request bodies: small ones at once, larger ones in slices of time, with other requests in between.

Before the items of a larger body are read, they are counted in the request's budget.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

from broker.http.budget import BudgetKind
from broker.http.request import Request
from broker.model import Snapshot
from broker.slices import in_shared_slices
from broker.wire.read_steps import Steps, Take, finish, free
from broker.wire.snapshotjson import body_steps

AT_ONCE_BYTES_MAX: Final = 4 * 1024
"""Bodies up to this length are read at once. That takes at most 2 ms, and mostly a hundredth of that."""

_Value = TypeVar("_Value")


def counting(request: Request) -> Take:
    """Return the function that counts the items of a request's body in its budget. Small bodies are not counted."""
    if len(request.body) <= AT_ONCE_BYTES_MAX:
        return free
    return partial(request.hold.take, BudgetKind.ITEMS)


async def read(request: Request, steps: Steps[_Value]) -> _Value:
    """Run the steps that read a request's body, and return their result. Their exceptions pass through."""
    if len(request.body) <= AT_ONCE_BYTES_MAX:
        return finish(steps)
    # Many bodies may arrive in one round of the loop.
    return await in_shared_slices(steps)


async def read_snapshot(request: Request) -> Snapshot:
    """Read a request's body that is a snapshot. Raises BadRequest, BodyTooLarge."""
    return await read(request, body_steps(request.body, take=counting(request)))

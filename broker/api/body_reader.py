"""Decode request bodies: small ones at once, larger ones in a thread, one at a time for each caller.

Before the items of a larger body are read, they are counted in the request's budget.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol, TypeVar

from broker.http.budget import BudgetKind
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import Snapshot
from broker.wire import Take, free
from broker.wire.snapshotjson import decode_body

UNCOUNTED_BYTES_MAX: Final = 4 * 1024
"""The items of bodies up to this length are not counted."""
AT_ONCE_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this length are decoded at once. That takes at most 5 ms, and mostly a hundredth of that."""

_Value_co = TypeVar("_Value_co", covariant=True)


class Decoder(Protocol[_Value_co]):
    """A function that decodes a body."""

    def __call__(self, body: bytes, /, *, take: Take) -> _Value_co:
        """Return the value of a body. It calls ``take`` for its items."""


async def read(request: Request, decode: Decoder[_Value_co]) -> _Value_co:
    """Return the value of a request's body. Raises the errors of ``decode``, and those of the budget."""
    body = request.body
    if len(body) <= UNCOUNTED_BYTES_MAX:
        return decode(body, take=free)
    take = partial(request.hold.take, BudgetKind.ITEMS)
    if len(body) <= AT_ONCE_BYTES_MAX:
        return decode(body, take=take)
    return await heavy(request.hold.caller, lambda counted: decode(body, take=counted), take)


async def read_snapshot(request: Request) -> Snapshot:
    """Read a request's body that is a snapshot. Raises BadRequest, BodyTooLarge."""
    return await read(request, decode_body)

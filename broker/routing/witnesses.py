"""Ask the other nodes for their time: the second witness when a storage server's clock differs from this node's.

This node asks each node for its view of itself, which has its time. The other node reads its clock between the request
and the answer. So the two clocks differ at least by the distance of that time from this interval, as with a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from broker.clock import Clock
from broker.coordination.claims import Written, read_clock
from broker.coordination.ports import NodeInfo
from broker.errors import BrokerError
from broker.http.answer import json_of

ASKED_MAX: Final = 8
ANSWER_S_MAX: Final = 1.0

Ask = Callable[[str, float], Awaitable[bytes]]
"""Returns the view of the node at a URL, within so many seconds. Raises BrokerError, OSError, TimeoutError."""


async def clocks_of(others: Iterable[NodeInfo], ask: Ask, clock: Clock) -> Sequence[Written]:
    """Return the clocks of the nodes that answer. This asks at most ASKED_MAX nodes, all at once."""
    asked = [_clock_of(node, ask, clock) for node in islice(others, ASKED_MAX)]
    return [answer for answer in await asyncio.gather(*asked) if answer is not None]


async def _clock_of(node: NodeInfo, ask: Ask, clock: Clock) -> Written | None:
    sent = read_clock(clock)
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            view = json_of(await ask(node.url, ANSWER_S_MAX))
    except (BrokerError, OSError, TimeoutError, ValueError):
        return None
    if not isinstance(view, dict) or view.get("node") != node.instance:
        return None
    now_ms = view.get("now_ms")
    return Written(sent, now_ms, clock.now_ms()) if isinstance(now_ms, int) else None

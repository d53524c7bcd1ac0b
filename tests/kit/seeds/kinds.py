"""What can go wrong in a simulated cluster: one small function for each kind of fault.

Each is a context manager that breaks something and mends it; what it gives is written into the history.
It draws from ``chance``, the fault's own, so that it does the same whatever else happens. One that finds
nothing to break (the node is down already) raises ``Nothing``. A new kind is a function with ``@fault``::

    @fault(weight=1, lasts_s=5)
    async def pause(cluster, chance, lasts_s):
        machine = some(cluster.up, chance)
        machine.pause()
        yield {"node": machine.name}
        machine.resume()
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from broker.testing.simulation.node import Machine
from tests.kit.seeds.plan import Weight
from tests.kit.seeds.stage import StagedCluster

Detail = dict[str, Any]
Body = Callable[[StagedCluster, random.Random, float], AsyncGenerator[Detail]]
Item = TypeVar("Item")

SERVED_S: Final = 60.0


class Nothing(Exception):
    """There was nothing to break."""


class Kind(NamedTuple):
    """A kind of fault."""

    weight: Weight
    begin: Callable[[StagedCluster, random.Random, float], AbstractAsyncContextManager[Detail]]


KINDS: Final[dict[str, Kind]] = {}


def fault(*, weight: float, lasts_s: float) -> Callable[[Body], Body]:
    """Register a kind under its function's name."""

    def register(body: Body) -> Body:
        KINDS[body.__name__] = Kind(Weight(weight, lasts_s), asynccontextmanager(body))
        return body

    return register


def some(items: Sequence[Item], chance: random.Random) -> Item:
    """Choose one. Raises Nothing."""
    if not items:
        raise Nothing
    return items[chance.randrange(len(items))]


def some_leader(cluster: StagedCluster, chance: random.Random) -> Machine:
    """Choose a machine whose node leads something, mostly. Raises Nothing."""
    leading = [machine for machine in cluster.up if machine.topics_led]
    return some(leading if leading and chance.random() < 0.7 else cluster.up, chance)

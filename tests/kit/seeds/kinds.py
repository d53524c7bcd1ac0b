"""The registry of fault kinds in a simulated cluster: one small function for each kind.

Each function is a context manager: it begins a fault and ends it. The value that it yields goes into the history. It
draws from its own ``chance``, so that its choices do not depend on other faults. It raises ``Nothing`` if the fault is
not possible now (the node is down already). A new kind is a function with ``@fault``::

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
from tests.kit.seeds.seeded_cluster import SeededCluster

Detail = dict[str, Any]
Body = Callable[[SeededCluster, random.Random, float], AsyncGenerator[Detail]]
Item = TypeVar("Item")

SERVED_S: Final = 60.0


class Nothing(Exception):
    """The fault is not possible now."""


class Kind(NamedTuple):
    """A kind of fault."""

    weight: Weight
    begin: Callable[[SeededCluster, random.Random, float], AbstractAsyncContextManager[Detail]]


KINDS: Final[dict[str, Kind]] = {}


def fault(*, weight: float, lasts_s: float) -> Callable[[Body], Body]:
    """Register a kind under its function's name."""

    def register(body: Body) -> Body:
        KINDS[body.__name__] = Kind(Weight(weight, lasts_s), asynccontextmanager(body))
        return body

    return register


def some(items: Sequence[Item], chance: random.Random) -> Item:
    """Choose one item. Raises Nothing if there is none."""
    if not items:
        raise Nothing
    return items[chance.randrange(len(items))]


def some_leader(cluster: SeededCluster, chance: random.Random) -> Machine:
    """Choose a live machine, mostly one whose node leads a topic. Raises Nothing."""
    leading = [machine for machine in cluster.up if machine.topics_led]
    return some(leading if leading and chance.random() < 0.7 else cluster.up, chance)

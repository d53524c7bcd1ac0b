"""What is promised of a cluster that is broken on purpose: the same for runs and for cases.

A topic is silent while somebody asks it and nothing is acknowledged. While a fault of ours is on, anything
may be; when it is healed, the cluster has some time to get well, and from then on no topic may be silent
for longer than is promised::

    fault ├───────────┤ healed
                      ├─ healing_s ─┤
                                    ├─ unavailable_s ─┤ silent until here: unavailable

How long both must be depends on the machine and on what lies below the nodes. Failover is promised within
the session time-out and half a second on a machine that has time, which the benchmarks measure; here it
is a bound that holds on a slow one as well, and finds what does not come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chaos.checkers import Promises

PROMISES: Final = Promises(early_ms=6_000)
"""Of every history. Clocks of nodes may differ, and a message lives by that of the node that gives its id or
is asked."""
UNAVAILABLE_S: Final = 10.0
"""Twice the session time-out of 4 s and half a second, and a little."""
HEALING_S: Final = 20.0


def promised(unavailable_s: float, healing_s: float) -> Promises:
    """Return what is promised of a run.

    Args:
        unavailable_s: How long a topic may be silent while nothing is broken; 0 promises nothing.
        healing_s: For how long after a fault that does not count.
    """
    if not unavailable_s:
        return PROMISES
    return replace(
        PROMISES,
        unavailable_ms=round(unavailable_s * 1000),
        healing_ms=round(healing_s * 1000),
    )

"""The promises of a cluster under faults, the same for runs and for cases.

A topic is silent while it has requests but acknowledges none. During a fault of the verifier, it may be silent
for any time. After the fault, the cluster has ``healing_s`` to recover. From then on, no topic may be silent
for longer than ``unavailable_s``::

    fault ├───────────┤ healed
                      ├─ healing_s ─┤
                                    ├─ unavailable_s ─┤ silent until here: unavailable

Both times depend on the machine, on HBase and on ZooKeeper. On a machine that is not overloaded, the product
promises failover within the session time-out and half a second; the benchmarks measure it. The times here
also hold on a slow machine. They find topics that do not come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chaos.checkers import Promises

PROMISES: Final = Promises(early_ms=6_000)
"""The promises for every history.

The nodes' clocks may differ. The age of a message is the difference between the clock of the node that gives
its id and the clock of the node that is read.
"""
UNAVAILABLE_S: Final = 10.0
"""Twice the sum of the session time-out (4 s) and half a second, and some more."""
HEALING_S: Final = 20.0


def promised(unavailable_s: float, healing_s: float) -> Promises:
    """Return the promises of a run.

    Args:
        unavailable_s: How long a topic may be silent without a fault; 0 promises nothing.
        healing_s: How long after a fault a silence does not count.
    """
    if not unavailable_s:
        return PROMISES
    return replace(
        PROMISES,
        unavailable_ms=round(unavailable_s * 1000),
        healing_ms=round(healing_s * 1000),
    )

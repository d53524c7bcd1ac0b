"""The public test kit, for tests of applications and for this project's own tests.

``Cluster`` and ``simulated`` are for tests of applications: a whole cluster in memory that fails on command (see
docs/guides/testing.md). The broker itself imports nothing from this package. An import of one module loads only the
modules that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.testing.simulation.public import Cluster, simulated

__all__ = ["Cluster", "simulated"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from broker.testing.simulation import public  # noqa: PLC0415 - It needs all of the broker.

    return getattr(public, name)

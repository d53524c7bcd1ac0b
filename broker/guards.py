"""The guards that keep messages safe, and the switch by which tests take one away.

Each guard is one check in one place. A test switches it off and sees the checker find the violation
that the guard prevents; a guard whose absence nothing notices is not tested. The switch works only
with ``BROKER_TESTING=1`` in the environment, and a node that runs without a guard says so. Whoever starts
a node as a process names its guards in ``BROKER_WITHOUT_GUARDS=epoch-tag,dedupe``.

Code asks ``guards.holds("confirm-cas")`` at the guarded place, never caching the answer across calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

NAMES = frozenset(
    {
        "epoch-tag",
        "cell-epoch",
        "pointer-tag",
        "confirm-cas",
        "claim-cas",
        "resolve-false",
        "token",
        "retry-or-give-up",
        "commit-pointer",
        "ids-rise",
        "row-sync",
        "rollback-commit",
        "edits",
        "floor-cas",
        "seal-first",
        "tombstone",
        "leveldb-reopen",
        "dedupe",
        "id-claim",
        "lane-order",
        "deadline",
        "sweep-margin",
    }
)

VARIABLE = "BROKER_WITHOUT_GUARDS"
"""Names, with commas between them, that a process is started without."""

_off: set[str] = set()


def holds(name: str) -> bool:
    """Whether the guard is in force. ``name`` is one of NAMES."""
    return name not in _off


def switched_off() -> frozenset[str]:
    """Return the guards that are not in force; empty outside of tests."""
    return frozenset(_off)


def switch_off(name: str) -> None:
    """Take a guard away. Raises ValueError for an unknown name, RuntimeError outside of tests."""
    if name not in NAMES:
        raise ValueError(f"no guard is called {name!r}; there are {', '.join(sorted(NAMES))}")
    if os.environ.get("BROKER_TESTING") != "1":
        raise RuntimeError("guards can be switched off only under BROKER_TESTING=1")
    _off.add(name)


def switch_off_named(environment: Mapping[str, str]) -> None:
    """Take away the guards that the environment of a process names. Raises as switch_off does."""
    for name in filter(None, environment.get(VARIABLE, "").split(",")):
        switch_off(name.strip())


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take a guard away for a block. Raises as switch_off does."""
    switch_off(name)
    try:
        yield
    finally:
        _off.discard(name)

"""The clauses of the rules that are in force.

Every clause has a name. The model calls ``keep(name)`` where the clause acts. A mutant is a run with one name dropped.
With no name dropped the rules are complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_DROPPED: set[str] = set()


def keep(clause: str) -> bool:
    """Return whether a clause is in force."""
    return clause not in _DROPPED


@contextmanager
def without(*clauses: str) -> Iterator[None]:
    """Drop exactly these clauses within a ``with`` block."""
    before = set(_DROPPED)
    _DROPPED.clear()
    _DROPPED.update(clauses)
    try:
        yield
    finally:
        _DROPPED.clear()
        _DROPPED.update(before)

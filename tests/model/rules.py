"""Which clauses of the rules are in force.

Every clause that a careless change could drop has a name. The model asks ``keep(name)`` where the clause
acts. A mutant is a run with one name dropped; with none dropped the rules are as they are meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_DROPPED: set[str] = set()


def keep(clause: str) -> bool:
    """Tell whether a clause is in force."""
    return clause not in _DROPPED


@contextmanager
def without(*clauses: str) -> Iterator[None]:
    """Drop clauses, and only these, for a while."""
    before = set(_DROPPED)
    _DROPPED.clear()
    _DROPPED.update(clauses)
    try:
        yield
    finally:
        _DROPPED.clear()
        _DROPPED.update(before)

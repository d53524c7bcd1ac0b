"""The failure cases: failures that trusted brokers have had, each played on purpose.

::

    python -m chaos cases                               list them
    python -m chaos case zombie-leader                  play one: exit 0
    python -m chaos case zombie-leader --mutant         the same without the guard: exit 1

Each case proves that its fault happened, and passes. It fails under its mutant, which lacks the guard: a test
that can't fail proves nothing.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from chaos.cases import disks, failovers, fences, message_ids, one_broker, pauses, splits
from chaos.cases.case import Case, CaseTarget, Played

_FAMILIES: Final = (one_broker, disks, failovers, fences, message_ids, pauses, splits)

CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in sorted(
        chain.from_iterable(family.CASES for family in _FAMILIES), key=lambda case: case.number
    )
}
"""All cases by name, in the order of their numbers."""

__all__ = ["CASES", "Case", "CaseTarget", "Played"]

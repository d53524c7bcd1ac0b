"""The failure cases: ways in which the most trusted brokers were seen to fail, each played on purpose.

::

    python -m chaos cases                               list them
    python -m chaos case zombie-leader                  play one: exit 0
    python -m chaos case zombie-leader --mutant         the same without what protects: exit 1

Each proves that its fault happened, passes, and fails under a mutant, which lacks the clause that protects: a
test that can't fail shows nothing.
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

"""Looking for a shorter schedule that still fails.

Faults are taken away in ever smaller parts, as in delta debugging, as long as what is left shows one of the
names that the whole showed; then the end of the run is cut off. Taking a fault away moves everything that
follows, so this finds a schedule that fails, not the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.kit.seeds.plan import Fault, Plan

MINUTES_MIN: Final = 0.1

Fails = Callable[[Plan], bool]


def shrunk(plan: Plan, fails: Fails, *, runs_max: int = 60) -> Plan:
    """Return the shortest plan found that still fails; ``fails`` runs one."""
    left = runs_max

    def tried(candidate: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    shorter = _fewer(_shorter(plan, tried), tried)
    return _shorter(shorter, tried)


def _shorter(plan: Plan, fails: Fails) -> Plan:
    """Cut the end off, by halves and then by quarters."""
    for share in (0.5, 0.75):
        while plan.minutes * share >= MINUTES_MIN:
            minutes = round(plan.minutes * share, 3)
            candidate = replace(plan, minutes=minutes, faults=_until(plan.faults, minutes * 60))
            if not fails(candidate):
                break
            plan = candidate
    return plan


def _until(faults: Sequence[Fault], until_s: float) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.at_s < until_s)


def _fewer(plan: Plan, fails: Fails) -> Plan:
    """Take faults away: halves, quarters, ... single ones."""
    size = len(plan.faults) // 2
    while size >= 1:
        for kept in _without_parts(plan.faults, size):
            candidate = replace(plan, faults=kept)
            if len(kept) < len(plan.faults) and fails(candidate):
                plan = candidate
                break
        else:
            size //= 2
    return plan


def _without_parts(faults: tuple[Fault, ...], size: int) -> Iterator[tuple[Fault, ...]]:
    for first in range(0, len(faults), size):
        yield faults[:first] + faults[first + size :]

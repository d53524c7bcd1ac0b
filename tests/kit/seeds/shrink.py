"""Find a shorter plan that still fails.

This module first cuts the end of the run off. Then it removes faults in ever smaller parts, as in delta debugging,
while the rest still shows a violation of the same name. Then it cuts the end off again. Removing a fault shifts all
later events, so the result is a plan that fails, not always the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.kit.seeds.plan import Fault, Plan

MINUTES_MIN: Final = 0.1

Fails = Callable[[Plan], bool]


def shrunk(plan: Plan, fails: Fails, *, runs_max: int = 60) -> Plan:
    """Return the shortest plan found that still fails; ``fails`` runs a plan."""
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
    """Remove faults: halves, quarters, ... single faults."""
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

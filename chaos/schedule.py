"""Which faults when: windows of ten to thirty seconds, a quarter of them healthy. Pure.

As Jepsen mixes faults: in each window a random few of them at once, everything healed at its end, and
windows without any between, so that a cluster also has to get well. Every fault that was asked for has its
turn before any has its second, as far as there is time; where each must happen and time is short, no window
is healthy before each has had its turn::

    0        17            31       44              70
    │ pause  │ (healthy)   │ pause, │ partition     │ (healthy)
    │        │             │ kill   │               │
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

WINDOW_S: Final = (10.0, 30.0)
HEALTHY: Final = 0.25
TOGETHER: Final = (1, 3)


class FaultWindow(NamedTuple):
    """From when to when, in seconds from the beginning, which faults are there."""

    begins_s: float
    ends_s: float
    faults: tuple[str, ...]


def windows(  # noqa: PLR0913  One keyword each.
    faults: Sequence[str],
    seconds: float,
    chance: random.Random,
    *,
    window_s: tuple[float, float] = WINDOW_S,
    together: tuple[int, int] = TOGETHER,
    groups: Mapping[str, str] | None = None,
    each: bool = False,
) -> list[FaultWindow]:
    """Draw the windows of a run.

    Args:
        faults: Names; none means that all is healthy.
        seconds: How long the run takes; the last window ends with it.
        chance: What decides.
        window_s: The least and the greatest length of a window.
        together: The least and the greatest number of faults at once, where there are any.
        groups: Of faults that would undo each other; there is one of a group at once.
        each: Whether each of them must have a window, if the time allows one for each.
    """
    drawn: list[FaultWindow] = []
    bag: list[str] = []
    lacking = set(faults) if each else set()
    begins_s = 0.0
    while begins_s < seconds:
        ends_s = begins_s + chance.uniform(*window_s)
        if seconds - ends_s < window_s[0]:  # Too little would be left for another.
            ends_s = seconds
        # The first is never healthy, so that a short run has a fault at all.
        healthy = not faults or (bool(drawn) and chance.random() < HEALTHY)
        # A healthy window might take the time of one that is needed.
        needed_s = (len(lacking) + 1) * window_s[1]
        is_short = bool(lacking) and needed_s > seconds - begins_s
        some: tuple[str, ...] = ()
        if is_short or not healthy:
            some = _some(faults, bag, chance, together, groups or {})
        lacking -= {*some}
        drawn.append(FaultWindow(begins_s, ends_s, some))
        begins_s = ends_s
    return drawn


def _some(
    faults: Sequence[str],
    bag: list[str],
    chance: random.Random,
    together: tuple[int, int],
    groups: Mapping[str, str],
) -> tuple[str, ...]:
    """Take a few names out of the bag, which is filled whenever it is empty."""
    count = chance.randint(*(min(bound, len(faults)) for bound in together))
    taken: list[str] = []
    while len(taken) < count:
        if not bag:
            bag += chance.sample(list(faults), len(faults))
        held = {groups.get(one, one) for one in taken}
        name = next((one for one in bag if groups.get(one, one) not in held), None)
        if name is None:
            break
        bag.remove(name)
        taken.append(name)
    return tuple(taken)

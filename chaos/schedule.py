"""The schedule of faults: windows of ten to thirty seconds, a quarter of them healthy. It does no I/O.

The mix follows Jepsen. Each window has a few random faults at once, which are healed at its end. Some windows
have no fault, so that the cluster must also recover. Each requested fault has its first window before any has
its second, if the time allows. If each fault must happen and the time is short, no window is healthy until
each fault has had a window::

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
    """A window in seconds from the beginning, and its faults."""

    begins_s: float
    ends_s: float
    faults: tuple[str, ...]


def windows(  # noqa: PLR0913  All options are keywords.
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
        faults: The names of the faults; without a name, all windows are healthy.
        seconds: The length of the run; the last window ends with it.
        chance: The source of random choices.
        window_s: The least and the greatest length of a window.
        together: The least and the greatest number of faults in a window that is not healthy.
        groups: The groups of faults that would undo each other; a window has at most one of a group.
        each: True to give each fault a window, if the time allows.
    """
    drawn: list[FaultWindow] = []
    bag: list[str] = []
    lacking = set(faults) if each else set()
    begins_s = 0.0
    while begins_s < seconds:
        ends_s = begins_s + chance.uniform(*window_s)
        if seconds - ends_s < window_s[0]:  # There is no time for another window.
            ends_s = seconds
        # The first window is never healthy, so that a short run has a fault.
        healthy = not faults or (bool(drawn) and chance.random() < HEALTHY)
        # A healthy window might take the time that a missing fault needs.
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
    """Take a few names out of the bag; fill the bag when it is empty."""
    count = chance.randint(*(min(bound, len(faults)) for bound in together))
    taken: list[str] = []
    while len(taken) < count:
        if not bag:
            bag += chance.sample(list(faults), len(faults))
        taken_groups = {groups.get(one, one) for one in taken}
        name = next((one for one in bag if groups.get(one, one) not in taken_groups), None)
        if name is None:
            break
        bag.remove(name)
        taken.append(name)
    return tuple(taken)

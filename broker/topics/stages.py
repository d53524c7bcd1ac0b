"""Number the stages: payload logs that a writer asks for, so that it can publish several of them at once.

The topic's leader gives a stage its number, which is negative and tells when the stage began::

    -(ms since 1970 << 20 | 20 bits)

So the sweeper finds the old stages without reading the others, and the number of a forgotten stage still shows that
it is old. In a request a stage has the number without its sign.
"""

from __future__ import annotations

import secrets
from typing import Final

from broker.clock import Clock

_BITS: Final = 20
STAGE_MIN: Final = -(1 << 63)


class StageNumbers:
    """Gives out numbers of stages, each below the one before."""

    def __init__(self) -> None:
        """Begin without a stage."""
        self._last = 0

    def next(self, now_ms: int) -> int:
        """Return a number. An earlier leader may have given out the same one, so check storage before its use."""
        least = (now_ms << _BITS) | secrets.randbelow(1 << (_BITS - 1))
        self._last = max(self._last + 1, least)
        return -self._last


def began_ms(stage: int) -> int:
    """Return the time when a stage began, ms since 1970."""
    return -stage >> _BITS


def newest_begun_by(now_ms: int) -> int:
    """Return the least number of a stage begun at or before ``now_ms``; older stages have greater numbers."""
    return max(-((max(now_ms, 0) << _BITS) | ((1 << _BITS) - 1)), STAGE_MIN)


def is_over(stage: int, clock: Clock, life_ms: int) -> bool:
    """Return whether a stage is too old for a store or a publish: its life has passed by every clock of this node."""
    return began_ms(stage) + life_ms <= clock.patient_ms(life_ms)

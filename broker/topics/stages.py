"""The numbers of stages: payload logs for which a writer asks, to publish several of them at once.

The topic's leader gives a stage its number, which is negative and tells when the stage began::

    -(ms since 1970 << 20 | 20 bits)

So the sweeper finds the stages that are old without reading the others, and a stage that was forgotten is known
to be old. In a request a stage has the number without its sign.
"""

from __future__ import annotations

import secrets
from typing import Final

_BITS: Final = 20
STAGE_MIN: Final = -(1 << 63)


class StageNumbers:
    """Gives numbers of stages, each below the one before."""

    def __init__(self) -> None:
        """Begin with none given."""
        self._last = 0

    def next(self, now_ms: int) -> int:
        """Return a number. Another leader may have given the same one in this ms: look before it is used."""
        least = (now_ms << _BITS) | secrets.randbelow(1 << (_BITS - 1))
        self._last = max(self._last + 1, least)
        return -self._last


def began_ms(stage: int) -> int:
    """Return when a stage began, ms since 1970."""
    return -stage >> _BITS


def newest_begun_by(now_ms: int) -> int:
    """Return the least number that a stage begun by then can have; stages begun before have greater ones."""
    return max(-((max(now_ms, 0) << _BITS) | ((1 << _BITS) - 1)), STAGE_MIN)


def is_over(stage: int, now_ms: int, life_ms: int) -> bool:
    """Whether a stage has become too old to be stored to, or published."""
    return began_ms(stage) + life_ms <= now_ms

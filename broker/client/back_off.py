"""The pause between two attempts at anything: it doubles, and is drawn from its upper half.

So clients that failed together do not return together. It
draws from the caller's source of chance, so that a simulated run can be repeated.
"""

from __future__ import annotations

import random


def pause_s(attempts: int, minimum_s: float, maximum_s: float, rng: random.Random) -> float:
    """Return the pause in seconds after this number of failed attempts, at least 1."""
    longest_s = min(maximum_s, minimum_s * float(1 << min(attempts - 1, 30)))
    return longest_s * rng.uniform(0.5, 1.0)

"""The payloads that all sides read."""

from __future__ import annotations

KEYS = 1000
KEY_DIGITS = 4
KEY = f"substring(cast(value as string), 1, {KEY_DIGITS})"
"""The key of a payload, as an expression of Spark's SQL."""


def payload(number: int, size: int) -> bytes:
    """Return a payload: its key, its number, and a filler up to ``size`` bytes."""
    return (b"%04d %d " % (number % KEYS, number)).ljust(size, b"x")[:size]

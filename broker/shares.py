"""How many of some places one caller may take. Pure."""

from __future__ import annotations


def has_share(mine: int, taken: int, most: int) -> bool:
    """Return whether a caller that has ``mine`` of the ``taken`` places may take one more, of ``most``.

    It may have three times as many as are free. So a caller gets at most three quarters of what the callers before it have
    left, and a quarter stays free for the next ones. Use this where no place can be taken back.
    """
    return mine < 3 * (most - taken)

"""How long a request may take, on this node's clock and on the wire.

Inside a node a deadline is a moment of its monotonic clock. Between nodes it is a moment of the guarded
wall clock: absolute, so that a copy that arrives late is refused however long it was on the way::

    sender    monotonic deadline ──▶ now_ms + what is left       Broker-Deadline
    leader    Broker-Deadline - now_ms ──▶ monotonic deadline    past it: refused, nothing done

The clocks of a cluster differ by ``clock_skew_ms_max`` at most, so a leader may begin that much after
the sender has given up, which then has answered *unknown*, never *refused*. The other way round, a request
with less time than the leader's clock is ahead is refused, though nobody has given it up: nothing is lost
by that, and a leader that were patient with late copies would take some that are. Such a leader compares
its clock with the storage's (api/routed.py): one whose clock is wrong by more leaves the membership.
"""

from __future__ import annotations

import math
from typing import Final

from broker.errors import BadRequest, Overloaded

REQUEST_TIMEOUT: Final = "Request-Timeout"
REQUEST_TIMEOUT_S_MAX: Final = 300.0


def parse_timeout_s(text: str) -> float:
    """Return the seconds that the header ``Request-Timeout`` gives. Raises BadRequest."""
    try:
        seconds = float(text) if len(text) <= 32 and text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= REQUEST_TIMEOUT_S_MAX:
        raise BadRequest(
            f"{REQUEST_TIMEOUT} must be seconds, more than 0 and at most "
            f"{REQUEST_TIMEOUT_S_MAX:g}, not {text!a:.80}."
        )
    return seconds


def on_the_wire_ms(deadline: float, monotonic: float, now_ms: int) -> int:
    """Return a monotonic deadline as the guarded wall clock shows it, rounded up."""
    return now_ms + math.ceil((deadline - monotonic) * 1000)


def from_the_wire(deadline_ms: int, monotonic: float, now_ms: int) -> float:
    """Return another node's deadline in monotonic seconds of this one.

    Raises:
        Overloaded: it has passed.
    """
    left_s = min((deadline_ms - now_ms) / 1000, REQUEST_TIMEOUT_S_MAX)
    if left_s <= 0:
        raise Overloaded(
            "The request's deadline passed before it came to the leader, by the leader's clock."
        )
    return monotonic + left_s

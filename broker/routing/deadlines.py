"""Convert a request's deadline between this node's clock and the wire.

Inside a node a deadline is a time of its monotonic clock. Between nodes it is a time of the guarded wall clock. It is
absolute, so that the leader refuses a late copy even if the network delayed it for long::

    sender    monotonic deadline ──▶ now_ms + the time left      Broker-Deadline
    leader    Broker-Deadline - now_ms ──▶ monotonic deadline    past it: refused, nothing done

Each node's clock differs from the storage's by ``clock_skew_ms_max`` at most, so two nodes' clocks differ by twice that
at most. So a leader may begin a request up to this time after its sender gave up. That is safe: the sender has then
answered *unknown*, never *refused*. Conversely, if the leader's clock is ahead by more than the time left, it refuses a
request that its sender still waits for. This loses nothing, because nothing was done. A leader that tolerated late
requests would also accept late copies. After such a refusal the leader compares its clock with the storage's
(api/routed.py). If its clock is off by more, it leaves the membership.
"""

from __future__ import annotations

import math
from typing import Final

from broker.errors import BadRequest, Overloaded
from broker.moments import span_s
from broker.operations.parameters import REQUEST_TIMEOUT_S_MAX

REQUEST_TIMEOUT: Final = "Request-Timeout"


def parse_timeout_s(text: str) -> float:
    """Return the seconds that the header ``Request-Timeout`` gives. Raises BadRequest."""
    try:
        seconds = span_s(text)
    except ValueError as error:
        raise BadRequest(f"{REQUEST_TIMEOUT}: {error}") from None
    if not 0 < seconds <= REQUEST_TIMEOUT_S_MAX:
        raise BadRequest(
            f"{REQUEST_TIMEOUT} must be seconds, more than 0 and at most "
            f"{REQUEST_TIMEOUT_S_MAX:g}, not {text!a:.80}."
        )
    return seconds


def on_the_wire_ms(deadline: float, monotonic: float, now_ms: int) -> int:
    """Return a monotonic deadline as a time of the guarded wall clock, rounded up."""
    return now_ms + math.ceil((deadline - monotonic) * 1000)


def from_the_wire(deadline_ms: int, monotonic: float, now_ms: int) -> float:
    """Return another node's deadline in monotonic seconds of this node.

    Raises:
        Overloaded: it has passed.
    """
    left_s = min((deadline_ms - now_ms) / 1000, REQUEST_TIMEOUT_S_MAX)
    if left_s <= 0:
        raise Overloaded(
            "By the leader's clock, the request's deadline passed before the request arrived."
        )
    return monotonic + left_s

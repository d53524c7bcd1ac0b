"""Say which marks of a log still count: look-ups and the sweeper ask the same function.

A mark counts until its window has passed by every clock of this node:

* by the wall clock, against the time in its id;
* by the boot clock. For a mark that was made under this hold, the wall clock without its jumps forward tells that
  (``Clock.patient_ms``). For how long an older mark has been there, no clock of this node has seen. So it counts for
  one more window from the claim on: also after a day without a leader.

So a key counts for at least one window, and a retry within it is never stored twice, even if a clock jumps. Ids
may run ahead of the clock, after a clock that was once wrong. Their marks count until a window has passed since the
next claim.
"""

from __future__ import annotations

from broker.clock import Clock
from broker.model import LOG_KEY_MIN, LogKey, first_log_key_at, log_key_after


class MarkWindow:
    """Judges the marks of one log while one hold lasts."""

    def __init__(self, clock: Clock, pointer: LogKey, window_ms: int) -> None:
        """Begin at the claim of a log that ends at ``pointer``. ``window_ms`` is the window of keys."""
        self.window_ms = window_ms
        self.clock = clock
        self._claimed_end = log_key_after(pointer)
        self._claimed_ms = clock.now_ms()
        self._claimed_boot_ms = clock.monotonic() * 1000

    def passed(self) -> LogKey:
        """Return the id below which no key counts any more."""
        return self.passed_before(self.window_ms)

    def passed_before(self, life_ms: float) -> LogKey:
        """Return the id below which no mark counts any more that lives for ``life_ms``."""
        since_claim_ms = self.clock.monotonic() * 1000 - self._claimed_boot_ms
        if since_claim_ms <= min(life_ms, self.window_ms):
            return LOG_KEY_MIN
        now_ms = self.clock.patient_ms(life_ms)
        bound = first_log_key_at(max(int(now_ms - life_ms), 0))
        if since_claim_ms > life_ms and now_ms - self._claimed_ms > life_ms:
            return max(bound, self._claimed_end)
        return bound

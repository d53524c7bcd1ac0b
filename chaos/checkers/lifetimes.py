"""How long a topic's messages live at least, while somebody changes that.

A message may be gone if its age was ever beyond a lifetime that may have been in force at that moment::

    create 30 s ──────────────────────────────┐
                    update 60 s asked ─── acknowledged ────▶
    may be gone     what is older than 30 s   what was older than 30 s then, or is older than 60 s

So at each moment there is a **horizon**, which never goes back: what was published before it may be gone.

An update may be done once more, late: who sends it again does not know what became of the first time. So
what any update said may be in force ever after, and only what a ``create`` said is over for certain.
"""

from __future__ import annotations

from typing import Final

from chaos.history import Operation

NS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


class TopicLifetimes:
    """The lifetimes of one topic, and the horizon that follows from them. Calls come in order."""

    def __init__(self) -> None:
        """Begin where nobody said anything: nothing expires."""
        self.least_ms: int | None = None
        """The least that may be in force just now."""
        self._asked: dict[int, int] = {}
        self._created: list[tuple[int, int]] = []
        """Creates that were acknowledged: the line of that, and the lifetime."""
        self._ever_ms: int | None = None
        self._passed_ns: int | None = None
        """The horizon as it was when lifetimes ended that are over."""
        self._reads: dict[int, int] = {}
        self._read: tuple[int, int | None] = (-1, None)
        """The read that was answered last, and what was in force when it was asked."""

    def began(self, call: Operation) -> None:
        """Note what was asked for, or what was in force when something is read."""
        if call.op in ("create", "update") and call.asked.get("ttl_s") is not None:
            self._asked[call.invoked] = int(call.asked["ttl_s"]) * 1000
            self._weigh()
        elif call.op == "read" and self.least_ms is not None:
            self._reads[call.invoked] = self.least_ms

    def ended(self, call: Operation) -> None:
        """Note what came of it."""
        if call.op == "read":
            self._read = call.invoked, self._reads.pop(call.invoked, None)
        ttl_ms = self._asked.pop(call.invoked, None)
        if ttl_ms is None:
            return
        if call.is_ok:
            self._close(call)
        if call.is_ok and call.op == "create":
            assert call.ended is not None
            self._created.append((call.ended, ttl_ms))
        elif call.outcome != "fail":
            self._ever_ms = ttl_ms if self._ever_ms is None else min(self._ever_ms, ttl_ms)
        self._weigh()

    def _close(self, call: Operation) -> None:
        """End what was created before something else was asked for, and acknowledged now."""
        assert call.ended_ns is not None
        over = [ttl_ms for line, ttl_ms in self._created if line < call.invoked]
        self._created = [one for one in self._created if one[0] >= call.invoked]
        for ttl_ms in over:
            horizon_ns = call.ended_ns - ttl_ms * NS
            self._passed_ns = max(horizon_ns, self._passed_ns or horizon_ns)

    def _weigh(self) -> None:
        told = [ttl_ms for _, ttl_ms in self._created]
        ever = [] if self._ever_ms is None else [self._ever_ms]
        self.least_ms = min((*self._asked.values(), *told, *ever), default=None)

    def horizon_ns(self, at_ns: int) -> int | None:
        """Return when a message was published that may just be gone at a time; None: none may."""
        return self._horizon_ns(at_ns, self.least_ms)

    def horizon_of(self, call: Operation) -> int | None:
        """Return that for the read that was answered last: it may go by what was when it was asked."""
        line, least_ms = self._read
        if line == call.invoked and least_ms is not None:
            return self._horizon_ns(call.ended_ns or 0, min(least_ms, self.least_ms or least_ms))
        return self.horizon_ns(call.ended_ns or 0)

    def _horizon_ns(self, at_ns: int, least_ms: int | None) -> int | None:
        if least_ms is None:
            return self._passed_ns
        horizon_ns = at_ns - least_ms * NS
        return horizon_ns if self._passed_ns is None else max(horizon_ns, self._passed_ns)

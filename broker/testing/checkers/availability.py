"""Checker of availability: how long a topic that was asked has acknowledged nothing.

::

    ok ──┤     asked ├───────────────────────── silent ─────────────────────────┤ ok
                         fault, no promise ├────────────┤ healed
                     ├── counted apart ────┤            ├──── counted apart ────┤

Faults say what is promised while they last; those that promise nothing are left out.
"""

from __future__ import annotations

from typing_extensions import override

from broker.testing.checkers.checker import Checker
from broker.testing.checkers.facts import NS, Topic
from broker.testing.checkers.violations import Findings, Promises, spot
from broker.testing.history import Call


class Faults:
    """The faults of a history."""

    def __init__(self, found: Findings) -> None:
        """Begin when all is well."""
        self._found = found
        self._open: dict[str, Call] = {}
        self._promised: list[tuple[int, int | None, int]] = []
        """(begun, healed, promise in ms)"""
        self.healed_ns = 0
        """When the last fault without a promise was healed."""

    @property
    def is_anything_possible(self) -> bool:
        """Whether a fault lasts while nothing is promised."""
        return any(call.asked.get("promise_ms") is None for call in self._open.values())

    def began(self, call: Call) -> None:
        """Note that a fault begins."""
        self._open[call.process] = call
        promise_ms = call.asked.get("promise_ms")
        if promise_ms is not None:
            self._promised.append((call.invoked_ns, None, promise_ms))

    def ended(self, call: Call) -> None:
        """Note that it is healed, and whether it happened."""
        assert call.ended_ns is not None
        self._open.pop(call.process, None)
        promise_ms = call.asked.get("promise_ms")
        if promise_ms is None:
            self.healed_ns = call.ended_ns
        else:
            self._promised.remove((call.invoked_ns, None, promise_ms))
            self._promised.append((call.invoked_ns, call.ended_ns, promise_ms))
        if call.is_ok and call.told.get("happened", True):
            self._found.counts[f"faults.{call.asked['kind']}"] += 1

    def promise_ms(self, since_ns: int) -> int:
        """Return the longest silence that a fault allows which lasted at that time or later."""
        return max(
            (ms for _, healed, ms in self._promised if healed is None or healed >= since_ns),
            default=0,
        )


class Availability(Checker):
    """Find topics that acknowledged nothing for longer than promised."""

    names = ("unavailable",)

    def __init__(self, topic: Topic, found: Findings, promises: Promises, faults: Faults) -> None:
        """Begin before anything was asked."""
        super().__init__(topic, found, promises)
        self._faults = faults
        self._since_ns: int | None = None
        self._under_way = 0

    @override
    def began(self, call: Call) -> None:
        """Count from the first that is asked."""
        if call.op == "publish":
            self._under_way += 1
            if self._since_ns is None:
                self._since_ns = call.invoked_ns

    @override
    def ended(self, call: Call) -> None:
        """Count until something is acknowledged."""
        assert call.ended_ns is not None
        if call.op == "publish":
            self._under_way -= 1
            if call.is_ok:
                self.look(call.ended_ns)
                self._since_ns = call.ended_ns if self._under_way else None
        if self.topic.lives.is_gone:
            self._since_ns = None

    def look(self, now_ns: int) -> None:
        """Judge the silence until now: it ends, or a fault begins, or the history is over."""
        if self._since_ns is None:
            return
        self.found.longest("longest_silent_ms", (now_ns - self._since_ns) // NS)
        if self._faults.is_anything_possible:
            return
        since_ns = max(self._since_ns, self._faults.healed_ns)
        silent_ms = max(now_ns - since_ns, 0) // NS
        self.found.longest("longest_unavailable_ms", silent_ms)
        if self.promises.unavailable_ms is None:
            return
        allowed_ms = max(self.promises.unavailable_ms, self._faults.promise_ms(since_ns))
        if silent_ms > allowed_ms:
            detail = spot(self.topic.name, silent_ms=silent_ms, allowed_ms=allowed_ms)
            self.found.add("unavailable", detail)

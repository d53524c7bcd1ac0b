"""Checker of availability: how long a topic, or a register, that was asked has acknowledged nothing.

::

    ok ──┤     asked ├───────────────────────── silent ─────────────────────────┤ ok
                         fault, no promise ├────────────┤ healed, healing_ms ├──┤ what counts
                     ├── counted apart ────┤

Faults say what is promised while they last; those that promise nothing are left out, and some time after
them. A topic is silent only for those who ask: of the time in which nobody does, ``ASKED_NS`` counts at
most, and of that in which it was deleted, or may have been, nothing. A register (see ``registers``) is silent
likewise: it is asked to be set or shown, and acknowledges either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.checkers.facts import NS
from chaos.checkers.violations import UNAVAILABLE, Findings, Promises, spot
from chaos.history import Operation, who_owes

ASKED_NS: Final = 1_000_000_000


class Faults:
    """The faults of a history."""

    def __init__(self, found: Findings) -> None:
        """Begin when all is well."""
        self._found = found
        self._open: dict[str, Operation] = {}
        self._promised: list[tuple[int, int | None, int]] = []
        """(begun, healed, promise in ms)"""
        self.healed_ns = 0
        """When the last fault without a promise was healed."""

    @property
    def is_anything_possible(self) -> bool:
        """Whether a fault lasts while nothing is promised."""
        return any(call.asked.get("promise_ms") is None for call in self._open.values())

    def began(self, call: Operation) -> None:
        """Note that a fault begins."""
        self._open[call.process] = call
        promise_ms = call.asked.get("promise_ms")
        if promise_ms is not None:
            self._promised.append((call.invoked_ns, None, promise_ms))

    def ended(self, call: Operation) -> None:
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


class Availability:
    """Finds that one topic or register acknowledged nothing for longer than promised."""

    names = (UNAVAILABLE,)

    def __init__(self, name: str, found: Findings, promises: Promises, faults: Faults) -> None:
        """Begin before anything was asked of ``name``."""
        self._name = name
        self._found = found
        self._promises = promises
        self._faults = faults
        self._first_ns = 0
        """When the first was asked that has had no acknowledgement since."""
        self._since_ns: int | None = None
        """The same, later by what does not count; None if nothing is owed."""
        self._under_way = 0
        self._asked_ns = -1
        """When it was asked last, being there."""
        self._told_ns = 0
        """When the last answer came, of any kind."""
        self._judged_ns = -1
        self._deletes: set[int] = set()
        """Deletes that are under way or of unknown outcome, by line."""
        self._is_gone = False
        self._gone_at = -1
        """The line at which the last delete was acknowledged."""

    def began(self, call: Operation) -> None:
        """Count from the first that is asked."""
        if who_owes(call.op, call.topic, call.asked) is not None:
            self._asked(call.invoked_ns)
        elif call.op == "delete":
            self._deletes.add(call.invoked)
            self._since_ns = None

    def _asked(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._begin(now_ns, asked=1)
        elif not self._under_way:
            self._since_ns = now_ns - self._silent_ns(now_ns)
        if self._since_ns is not None:
            self._asked_ns = now_ns
        self._under_way += 1

    def _begin(self, now_ns: int, *, asked: int) -> None:
        """Count from now on, if somebody waits for a topic that is there."""
        is_owed = asked > 0 and not self._is_gone and not self._deletes
        self._first_ns, self._since_ns = now_ns, now_ns if is_owed else None

    def ended(self, call: Operation) -> None:
        """Count until something is acknowledged."""
        assert call.ended_ns is not None
        if who_owes(call.op, call.topic, call.asked) is not None:
            self._answered(call, call.ended_ns)
        elif call.op == "create" and call.is_ok:
            self._deletes.clear()
            self._is_gone = False
            self._asked_ns = call.ended_ns if self._under_way else -1
            self._begin(call.ended_ns, asked=self._under_way)
        elif call.op == "delete" and call.outcome != "unknown":
            self._deletes.discard(call.invoked)
            if call.is_ok:
                assert call.ended is not None
                self._is_gone, self._gone_at = True, call.ended
            self._begin(call.ended_ns, asked=self._under_way)

    def _answered(self, call: Operation, now_ns: int) -> None:
        if call.is_ok:
            self.look(now_ns)
        self._under_way -= 1
        self._told_ns = now_ns
        if call.is_ok:
            self._judged_ns = now_ns
            # One that was under way when the topic was deleted may be told of later.
            self._is_gone = self._is_gone and call.invoked < self._gone_at
            self._begin(now_ns, asked=self._under_way)

    def look(self, now_ns: int) -> None:
        """Judge the silence until now: it ends, or a fault begins, or the history is over."""
        if self._since_ns is None:
            return
        self._found.longest("longest_silent_ms", (self._until(now_ns) - self._first_ns) // NS)
        if self._faults.is_anything_possible:
            return
        silent_ms = self._silent_ns(now_ns) // NS
        self._found.longest("longest_unavailable_ms", silent_ms)
        if self._promises.unavailable_ms is None:
            return
        since_ns = max(self._first_ns, self._faults.healed_ns)
        allowed_ms = max(self._promises.unavailable_ms, self._faults.promise_ms(since_ns))
        if silent_ms > allowed_ms:
            detail = spot(self._name, silent_ms=silent_ms, allowed_ms=allowed_ms)
            self._found.add(UNAVAILABLE, detail)
            self._judged_ns = now_ns

    def _until(self, now_ns: int) -> int:
        return now_ns if self._under_way else min(now_ns, self._told_ns + ASKED_NS)

    def _silent_ns(self, now_ns: int) -> int:
        """Return for how long it is silent now, of what counts."""
        assert self._since_ns is not None
        healed_ns = self._faults.healed_ns
        counts_ns = healed_ns + self._promises.healing_ms * NS if healed_ns else 0
        return max(self._until(now_ns) - max(self._since_ns, counts_ns), 0)

    @property
    def is_back(self) -> bool | None:
        """Whether it was judged since the last fault: acknowledged, or was found silent.

        None if nobody has asked since, or it is not there.
        """
        if self._is_gone or self._deletes or self._asked_ns < 0:
            return None
        if self._faults.is_anything_possible:
            return False
        if self._judged_ns >= self._faults.healed_ns:
            return True
        was_asked = self._under_way > 0 or self._asked_ns >= self._faults.healed_ns
        return False if was_asked else None


def is_judged(asked: Iterable[Availability]) -> bool:
    """Whether a history shows that what is asked comes back: something did, and all that was asked."""
    states = [one.is_back for one in asked]
    return True in states and False not in states

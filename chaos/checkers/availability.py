"""The checker of availability measures how long a topic, register or rowlog acknowledges no request.

::

    ok ──┤     asked ├───────────────────────── silent ─────────────────────────┤ ok
                                     fault ├────────────┤ healed, healing_ms ├──┤ counted
                     ├── counted apart ────┤

The time of a fault does not count, nor does ``healing_ms`` after it. A topic is silent only while clients
send requests. After the last request, at most ``ASKED_NS`` counts. The time in which the topic is deleted,
or may be, does not count.

Registers (see ``registers``) have the same rule, for compare-and-sets and gets, and rowlogs have it for puts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.checkers.lifetimes import NS_IN_MS
from chaos.checkers.violations import SAME_INSTANCE_ID, UNAVAILABLE, Findings, Promises, spot
from chaos.history import Operation, availability_name

ASKED_NS: Final = 1_000_000_000


class Faults:
    """The faults of a history."""

    names = (SAME_INSTANCE_ID,)

    def __init__(self, found: Findings) -> None:
        """Begin without a fault."""
        self._found = found
        self._open: dict[str, Operation] = {}
        self.healed_ns = 0
        """When the last fault was healed."""

    @property
    def is_anything_possible(self) -> bool:
        """True while a fault lasts."""
        return bool(self._open)

    def began(self, call: Operation) -> None:
        """Take the beginning of a fault."""
        self._open[call.process] = call

    def ended(self, call: Operation) -> None:
        """Take the end of a fault, and count the fault if it really happened."""
        assert call.ended_ns is not None
        self._open.pop(call.process, None)
        self.healed_ns = call.ended_ns
        if call.is_ok and call.told.get("happened"):
            self._found.counts[f"faults.{call.asked['kind']}"] += 1
        for instance in call.told.get("twins", ()):
            detail = spot(f"instance id {instance}", fault=call.process)
            self._found.add(SAME_INSTANCE_ID, detail, call.ended)


class Availability:
    """Finds silences of one topic, register or rowlog that are longer than promised."""

    names = (UNAVAILABLE,)

    def __init__(self, name: str, found: Findings, promises: Promises, faults: Faults) -> None:
        """Begin before the first request to ``name``."""
        self._name = name
        self._found = found
        self._promises = promises
        self._faults = faults
        self._first_ns = 0
        """When the first request since the last acknowledgement began."""
        self._since_ns: int | None = None
        """The same, later by the time that does not count; None while no acknowledgement is due."""
        self._in_flight = 0
        self._asked_ns = -1
        """When the last request began, while the topic existed."""
        self._told_ns = 0
        """When the last answer came, of any kind."""
        self._judged_ns = -1
        self._deletes: set[int] = set()
        """The lines of deletes in flight or of unknown outcome."""
        self._is_gone = False
        self._gone_at = -1
        """The line at which the last delete was acknowledged."""

    def began(self, call: Operation) -> None:
        """Take the beginning of a call, and count from the first request."""
        if availability_name(call.op, call.topic, call.asked) is not None:
            self._asked(call.invoked_ns)
        elif call.op == "delete":
            self._deletes.add(call.invoked)
            self._since_ns = None

    def _asked(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._begin(now_ns, asked=1)
        elif not self._in_flight:
            self._since_ns = now_ns - self._silent_ns(now_ns)
        if self._since_ns is not None:
            self._asked_ns = now_ns
        self._in_flight += 1

    def _begin(self, now_ns: int, *, asked: int) -> None:
        """Count from now on, if a request is in flight and the topic exists."""
        is_owed = asked > 0 and not self._is_gone and not self._deletes
        self._first_ns, self._since_ns = now_ns, now_ns if is_owed else None

    def ended(self, call: Operation) -> None:
        """Take the end of a call, and count until the first acknowledgement."""
        assert call.ended_ns is not None
        if availability_name(call.op, call.topic, call.asked) is not None:
            self._answered(call, call.ended_ns)
        elif call.op == "create" and call.is_ok:
            self._deletes.clear()
            self._is_gone = False
            self._asked_ns = call.ended_ns if self._in_flight else -1
            self._begin(call.ended_ns, asked=self._in_flight)
        elif call.op == "delete" and call.outcome != "unknown":
            self._deletes.discard(call.invoked)
            if call.is_ok:
                assert call.ended is not None
                self._is_gone, self._gone_at = True, call.ended
            self._begin(call.ended_ns, asked=self._in_flight)

    def _answered(self, call: Operation, now_ns: int) -> None:
        if call.is_ok:
            self.look(now_ns)
        self._in_flight -= 1
        self._told_ns = now_ns
        if call.is_ok:
            self._judged_ns = now_ns
            # A publish in flight at the delete may be acknowledged after it.
            self._is_gone = self._is_gone and call.invoked < self._gone_at
            self._begin(now_ns, asked=self._in_flight)

    def look(self, now_ns: int) -> None:
        """Judge the silence until now.

        The judge calls it when the silence ends, when a fault begins, and at the end of the history.
        """
        if self._since_ns is None:
            return
        self._found.longest("longest_silent_ms", (self._until(now_ns) - self._first_ns) // NS_IN_MS)
        if self._faults.is_anything_possible:
            return
        silent_ms = self._silent_ns(now_ns) // NS_IN_MS
        self._found.longest("longest_unavailable_ms", silent_ms)
        if self._promises.unavailable_ms is None:
            return
        if silent_ms > self._promises.unavailable_ms:
            allowed_ms = self._promises.unavailable_ms
            detail = spot(self._name, silent_ms=silent_ms, allowed_ms=allowed_ms)
            self._found.add(UNAVAILABLE, detail)
            self._judged_ns = now_ns

    def _until(self, now_ns: int) -> int:
        return now_ns if self._in_flight else min(now_ns, self._told_ns + ASKED_NS)

    def _silent_ns(self, now_ns: int) -> int:
        """Return the counted time of the present silence."""
        assert self._since_ns is not None
        healed_ns = self._faults.healed_ns
        counts_ns = healed_ns + self._promises.healing_ms * NS_IN_MS if healed_ns else 0
        return max(self._until(now_ns) - max(self._since_ns, counts_ns), 0)

    @property
    def is_back(self) -> bool | None:
        """True if it was judged since the last fault: it acknowledged a request, or was found silent.

        None if it had no request since the fault, or does not exist.
        """
        if self._is_gone or self._deletes or self._asked_ns < 0:
            return None
        if self._faults.is_anything_possible:
            return False
        if self._judged_ns >= self._faults.healed_ns:
            return True
        was_asked = self._in_flight > 0 or self._asked_ns >= self._faults.healed_ns
        return False if was_asked else None


def is_judged(asked: Iterable[Availability]) -> bool:
    """True if there is a requested topic, register or rowlog, and each was judged after the last fault."""
    states = [one.is_back for one in asked]
    return True in states and False not in states

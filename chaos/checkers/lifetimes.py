"""The shortest possible life of a topic's messages, while clients change the ``ttl``.

A message may be gone if its age ever exceeded a ``ttl`` that may have been in force at that moment::

    create 30 s ──────────────────────────────┐
                    update 60 s asked ─── acknowledged ────▶
    may be gone     older than 30 s           older than 30 s at that moment, or older than 60 s now

So at each moment there is a **horizon**. Messages published before it may be gone. It never goes back.

An update may be applied once more, late: a client that repeats it does not know the outcome of the first
request. So the ``ttl`` of any update may be in force at any later time. Only the ``ttl`` of a ``create``
ends for certain.
"""

from __future__ import annotations

from typing import Final

from chaos.history import Operation

NS_IN_MS: Final = 1_000_000


class TopicLifetimes:
    """The lifetimes of one topic, and their horizon. Calls come in order."""

    def __init__(self) -> None:
        """Begin without a ``ttl``: no message expires."""
        self.least_ms: int | None = None
        """The shortest ``ttl`` that may be in force now."""
        self._asked: dict[int, int] = {}
        self._created: list[tuple[int, int]] = []
        """Acknowledged creates: the line of the acknowledgement, and the ``ttl``."""
        self._ever_ms: int | None = None
        self._passed_ns: int | None = None
        """The latest horizon of the lifetimes that have ended."""
        self._reads: dict[int, int] = {}
        self._read: tuple[int, int | None] = (-1, None)
        """The last answered read, and the shortest ``ttl`` when it began."""

    def began(self, call: Operation) -> None:
        """Note a requested ``ttl``, or the one in force when a read begins."""
        if call.op in ("create", "update") and call.asked.get("ttl_s") is not None:
            self._asked[call.invoked] = int(call.asked["ttl_s"]) * 1000
            self._weigh()
        elif call.op == "read" and self.least_ms is not None:
            self._reads[call.invoked] = self.least_ms

    def ended(self, call: Operation) -> None:
        """Note the outcome."""
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
        """End the lifetimes of creates that were acknowledged before this acknowledged call began."""
        assert call.ended_ns is not None
        over = [ttl_ms for line, ttl_ms in self._created if line < call.invoked]
        self._created = [one for one in self._created if one[0] >= call.invoked]
        for ttl_ms in over:
            horizon_ns = call.ended_ns - ttl_ms * NS_IN_MS
            self._passed_ns = max(horizon_ns, self._passed_ns or horizon_ns)

    def _weigh(self) -> None:
        told = [ttl_ms for _, ttl_ms in self._created]
        ever = [] if self._ever_ms is None else [self._ever_ms]
        self.least_ms = min((*self._asked.values(), *told, *ever), default=None)

    def horizon_ns(self, at_ns: int) -> int | None:
        """Return the horizon at a time; None if no message may be gone."""
        return self._horizon_ns(at_ns, self.least_ms)

    def horizon_of(self, call: Operation) -> int | None:
        """Return the horizon for the last answered read. The ``ttl`` at its beginning counts too."""
        line, least_ms = self._read
        if line == call.invoked and least_ms is not None:
            return self._horizon_ns(call.ended_ns or 0, min(least_ms, self.least_ms or least_ms))
        return self.horizon_ns(call.ended_ns or 0)

    def _horizon_ns(self, at_ns: int, least_ms: int | None) -> int | None:
        if least_ms is None:
            return self._passed_ns
        horizon_ns = at_ns - least_ms * NS_IN_MS
        return horizon_ns if self._passed_ns is None else max(horizon_ns, self._passed_ns)

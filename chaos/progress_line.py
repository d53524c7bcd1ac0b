"""The progress of a run: a line every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from chaos.history import WRITES, Event, History, availability_name

EVERY_S: Final = 5.0
LOOK_S: Final = 0.2
_LATENCIES_MAX: Final = 10_000


class HistoryProgress:
    """Watches a history grow.

    Attributes:
        acknowledged: The number of acknowledged publishes, changes of registers and puts of rowlogs.
        faults: The names of the present faults, for the line.
    """

    def __init__(self, history: History, say: Callable[[str], None]) -> None:
        self.acknowledged = 0
        self.faults: Sequence[str] = ()
        self._history = history
        self._say = say
        self._seen = 0
        self._counts = {"ok": 0, "fail": 0, "unknown": 0}
        self._begun: dict[str, tuple[str, Event]] = {}
        """The calls in flight by process: the topic, register or rowlog, and the invoke."""
        self._owed: set[str] = set()
        self._back: set[str] = set()
        self._latencies_ms: list[float] = []

    def mark(self) -> None:
        """Make ``silent`` count from now on, with the calls in flight."""
        self._count()
        self._owed = {name for name, _ in self._begun.values()}
        self._back = set()

    @property
    def silent(self) -> list[str]:
        """Return the topics, registers and rowlogs with a request but no acknowledgement since ``mark``."""
        return sorted(self._owed - self._back)

    async def look(self) -> None:
        """Wait a moment, and count the new lines."""
        await asyncio.sleep(LOOK_S)
        self._count()

    async def tell(self) -> None:
        """Say a line every few seconds, until cancelled."""
        began = told = time.monotonic()
        before = 0
        while True:
            await self.look()
            now = time.monotonic()
            if now - told < EVERY_S:
                continue
            rate = (self.acknowledged - before) / (now - told)
            self._say(self._line(now - began, rate))
            told, before = now, self.acknowledged
            self._latencies_ms.clear()

    def _line(self, seconds: float, rate: float) -> str:
        counts = self._counts
        slow = sorted(self._latencies_ms)
        worst = f"p99 {slow[len(slow) * 99 // 100]:.0f} ms" if slow else "none acknowledged"
        return (
            f"{seconds:4.0f} s  writes {counts['ok']} ok ({rate:.0f}/s, {worst}) "
            f"{counts['fail']} fail {counts['unknown']} unknown  "
            f"{', '.join(self.faults) or 'healthy'}"
        )

    def _count(self) -> None:
        events = self._history.events
        for event in events[self._seen :]:
            if event.type == "invoke":
                self._asked(event)
            elif event.process in self._begun:
                self._told(event, *self._begun.pop(event.process))
        self._seen = len(events)

    def _asked(self, event: Event) -> None:
        name = availability_name(event.op, event.topic, event.value)
        if name is not None:
            self._begun[event.process] = name, event
            self._owed.add(name)

    def _told(self, event: Event, name: str, asked: Event) -> None:
        if event.type == "ok":
            self._back.add(name)
        if event.op not in WRITES:
            return
        self._counts[event.type] += 1
        if event.type == "ok":
            self.acknowledged += 1
            if len(self._latencies_ms) < _LATENCIES_MAX:
                self._latencies_ms.append((event.time_ns - asked.time_ns) / 1e6)

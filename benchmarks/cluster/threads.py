"""What several clients do at a time, each in a thread that waits for one answer after the other."""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence


class Thread:
    """Does one thing again and again, and notes how long it took."""

    def __init__(self, once: Callable[[], None], until_ns: int) -> None:
        """Do ``once`` until then; what ends later does not count."""
        self.latencies_ns = array("q")
        self.has_ended = False
        """Whether it went on until then; else it has said why not."""
        self._once = once
        self._until_ns = until_ns
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        began_ns = time.perf_counter_ns()
        while began_ns < self._until_ns:
            self._once()
            now_ns = time.perf_counter_ns()
            if now_ns < self._until_ns:
                self.latencies_ns.append(now_ns - began_ns)
            began_ns = now_ns
        self.has_ended = True


def measure(each: Sequence[Callable[[], None]], messages: int, seconds: float) -> None:
    """Do all of these for so long, ``messages`` at a time, and print what came of it as JSON.

    Each is done once before, not timed. Exits with 1 if one of them fails.
    """
    for once in each:
        once()
    until_ns = time.perf_counter_ns() + int(seconds * 1e9)
    threads = [Thread(once, until_ns) for once in each]
    for one in threads:
        one.thread.start()
    for one in threads:
        one.thread.join()
    if not all(one.has_ended for one in threads):
        sys.exit(1)
    taken = [taken_ns for one in threads for taken_ns in one.latencies_ns]
    print(
        json.dumps({"messages": len(taken) * messages, "seconds": seconds, "latencies_ns": taken})
    )

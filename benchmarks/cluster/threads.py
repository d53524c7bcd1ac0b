"""Run several clients at a time, each in a thread that waits for one answer after the other."""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence


class Thread:
    """Repeats one call, and records the time of each."""

    def __init__(self, once: Callable[[], None], until_ns: int) -> None:
        """Repeat ``once`` until ``until_ns``; a call that ends later does not count."""
        self.latencies_ns = array("q")
        self.has_ended = False
        """True if it went on until ``until_ns``; else the thread has printed an error."""
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
    """Repeat all calls for ``seconds``, each in its own thread, and print the times as JSON.

    Each call stands for ``messages`` messages. Each runs once before, untimed. Exits with 1 if a thread fails.
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

"""A worker process of a rowlog. Tests and the verifier start, kill, stop and continue it.

It writes a line to standard output for every call of its listeners (see checkers/rowlog.py), and when it
becomes leader or follower::

    python -m chaos.rowlog_worker NAME '{"thrift1": 9090, "zookeeper": ["127.0.0.1:2181"],
        "table": "t", "id": "mq", "subscriptions": ["a"], "session_timeout_ms": 2000, "fails": 0.1, "takes_s": 0.01}'

With "thrift2": ["127.0.0.1:9091"] in place of "thrift1", each write is synced. With "serves": true, the process is no
candidate: it serves its listeners to processors on other nodes. With "fails_rows": "bad", listeners fail for each row
whose key begins with "bad". ``@FILE`` in place of the JSON reads it from that file.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.clock import SystemClock
from broker.errors import Unavailable
from broker.rowlog import Message, RowLog


class Worker:
    """A candidate for leader. Its listeners take some time, and fail at random."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        """Begin with a name; the module's docstring shows ``given``."""
        self._name = name
        self._given = given
        self._chance = random.Random(os.getpid())
        self._calls = 0
        self._clock = SystemClock()

    def tell(self, kind: str, **fields: Any) -> None:
        """Write a line of history."""
        line = {
            "kind": kind,
            "process": self._name,
            "log": self._given["id"],
            "time_ns": time.monotonic_ns(),
            **fields,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def listener(self, subscription: str) -> Any:
        """Return a listener that writes the beginning and end of its calls."""

        async def listen(message: Message) -> bool:
            self._calls += 1
            about = {
                "row": message.row.decode(),
                "seq": message.seq,
                "subscription": subscription,
                "call": f"{os.getpid()}/{self._calls}",
            }
            self.tell("begin", **about)
            is_done = False
            try:
                takes_s = self._chance.random() * 2 * self._given.get("takes_s", 0.01)
                await self._clock.sleep(takes_s)
                is_good = self._chance.random() >= self._given.get("fails", 0.0)
                bad: str = self._given.get("fails_rows", "")
                is_done = is_good and not (bad and message.row.startswith(bad.encode()))
            finally:  # A processor that lost its lease cancels its listeners, which also ends these calls.
                self.tell("end", **about, done=is_done)
            return is_done

        return listen

    async def run(self) -> None:
        """Work until the process ends; write a last line if it ends by itself."""
        try:
            await self._run()
        finally:
            self.tell("halted")

    async def _run(self) -> None:
        given = self._given
        pool = None
        if "thrift1" in given:
            import happybase  # noqa: PLC0415 - The verifier's workers do not need it.

            pool = happybase.ConnectionPool(
                6, host="127.0.0.1", port=given["thrift1"], timeout=10_000
            )
        log = RowLog(
            pool,
            given["table"],
            id=given["id"],
            zookeeper=given["zookeeper"],
            session_timeout_ms=given.get("session_timeout_ms", 2_000),
            threads=6,
            synced=pool is None,
            thrift2=given.get("thrift2", ()),
        )
        async with log:
            for subscription in given["subscriptions"]:
                log.listen(subscription, self.listener(subscription))
            await self._begin(log)
            self.tell("ready")
            leads = False
            while True:
                if leads != bool(log.figures.values["leads", ""]):
                    leads = not leads
                    self.tell("leads" if leads else "follows")
                await self._clock.sleep(0.05)

    async def _begin(self, log: RowLog) -> None:
        """Serve listeners or be a candidate. Retry while ZooKeeper has no contact: sessions are short here."""
        while True:
            with suppress(Unavailable):
                await (log.serve_listeners() if self._given.get("serves") else log.start())
                return
            await self._clock.sleep(0.1)


def given_by(word: str) -> dict[str, Any]:
    """Return the settings in the second argument, which is JSON or ``@FILE``."""
    given: dict[str, Any] = json.loads(Path(word[1:]).read_text() if word[0] == "@" else word)
    return given


if __name__ == "__main__":
    asyncio.run(Worker(sys.argv[1], given_by(sys.argv[2])).run())

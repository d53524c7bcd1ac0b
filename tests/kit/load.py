"""Run applications on a cluster; the checkers judge their history.

They are the applications of the workload *log*, as fast as the cluster answers, on topics with given names. A test
injects a fault meanwhile, and waits until the work goes on::

    async with ClusterLoad(urls, topics) as load:
        await load.acknowledged(500)        # the load runs
        node.kill()
        await load.acknowledged(500)        # the load goes on
    verdict = load.verdict                  # of chaos.checkers

If a wait takes too long, its error lists the outcomes so far and the calls in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from broker.model import TopicId
from chaos.checkers import Verdict, check
from chaos.history import Event, History, Pairing
from chaos.workloads import REAL, WorkloadSurroundings, publishers, readers
from chaos.workloads.client_process import ClientProcess, TopicTarget
from chaos.workloads.log import LogWorkload
from chaos.workloads.real import RealSurroundings

DEADLINE_S: Final = 60.0
PUBLISHING: Final = (publishers.single, publishers.keyed, publishers.forwarded)
READING: Final = (readers.waiting, readers.paging, readers.streaming)
READERS: Final = {kind.__name__ for kind in READING}
ENDED: Final = asyncio.CancelledError.__name__
"""The reason with which a reader's last call ends."""
SCALE: Final = replace(
    REAL,
    consumers=len(READING),
    padded=False,
    pause_s=0.02,
    again_s=0.05,
    final_s=DEADLINE_S,
    ttl_s=3600,
)
SEED: Final = 1
TOLD: Final = 5


class _Watched(History):
    """A history that passes each event on to a callback."""

    def __init__(self, told: Callable[[Event], None]) -> None:
        super().__init__(time.monotonic_ns)
        self._told = told

    @override
    def write(self, event: Event) -> None:
        super().write(event)
        self._told(event)


class _OnTopics(LogWorkload):
    """The workload on topics with given names."""

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(PUBLISHING, READING)
        self._topics = [TopicId(*topic.split("/", 1)) for topic in topics]

    @override
    async def prepare(self, around: WorkloadSurroundings) -> None:
        async with ClientProcess(around, "creator") as process:
            for topic in self._topics:
                target = TopicTarget(topic.topic, namespace=topic.namespace)
                self.targets.append(await process.create(target))


class ClusterLoad:
    """Publishers and consumers of topics; a context manager that ends with the final reads.

    Args:
        urls: The nodes' addresses.
        topics: ``namespace/topic``; the load creates them.
        publishers: The number for each topic; in turn without a key, with a key, and through one node only.
        state: Text for the error of a wait that took too long.
        deadline_s: The deadline of each publish.
        pause_s: The mean pause of each application between two operations.

    Attributes:
        history: The calls of this load; a test may add calls of its own.
        answered: The number of successful calls of any kind in the history.
        counts: Publishes of this load by outcome: ok, fail, unknown.
        errors: The reasons of publishes that were not acknowledged.
        unread: The reasons of failed reads, except for the end of the load.
    """

    def __init__(
        self,
        urls: Sequence[str],
        topics: Sequence[str],
        *,
        publishers: int = 4,
        state: Callable[[], str] = lambda: "",
        deadline_s: float = DEADLINE_S,
        pause_s: float = SCALE.pause_s,
    ) -> None:
        self.history: History = _Watched(self._see)
        self.answered = 0
        self.counts = {"ok": 0, "fail": 0, "unknown": 0}
        self.errors: list[str] = []
        self.unread: list[str] = []
        scale = replace(SCALE, publishers=publishers, deadline_s=deadline_s, pause_s=pause_s)
        self._around = RealSurroundings(urls, seed=SEED, scale=scale, history=self.history)
        self._workload = _OnTopics(topics)
        self._state = state
        self._stop = asyncio.Event()
        self._progress = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._silence: asyncio.Timeout | None = None
        """A timeout that each event of the history postpones."""

    def _see(self, event: Event) -> None:
        self.answered += event.type == "ok"
        if self._silence is not None:
            self._silence.reschedule(asyncio.get_running_loop().time() + DEADLINE_S)
        if event.type == "invoke":
            return
        kind = event.process.partition("-")[0]
        if kind in READERS and event.type != "ok" and event.value["why"] != ENDED:
            self.unread.append(f"{event.process}: {event.value['why']}")
        if event.op == "publish" and kind in {kind.__name__ for kind in PUBLISHING}:
            self.counts[event.type] += 1
            if event.type != "ok":
                self.errors.append(event.value["why"])
            self._progress.set()

    async def __aenter__(self) -> Self:
        """Create the topics and begin."""
        await self._workload.prepare(self._around)
        self._working = asyncio.create_task(self._workload.run(self._around, self._stop))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the calls in flight, and read all topics through all nodes."""
        assert self._working is not None, "entered first"
        self._stop.set()
        try:
            if error is None:
                await self._within(self._working, "publishers have not ended")
                await self._within(self._finals(), "the final reads have not gone on", None)
        finally:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def acknowledged(self, more: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until so many more publishes are acknowledged."""
        wanted = self.counts["ok"] + more
        await self._within(self._until(wanted), f"no {more} more were acknowledged", deadline_s)

    async def _until(self, wanted: int) -> None:
        while self.counts["ok"] < wanted:
            self._progress.clear()
            await self._progress.wait()

    async def _finals(self) -> None:
        # The time of all final reads depends on the number of messages; the time of each page does not.
        async with asyncio.timeout(DEADLINE_S) as self._silence:
            await self._workload.finish(self._around)

    async def _within(
        self, work: Awaitable[object], failure: str, deadline_s: float | None = DEADLINE_S
    ) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await work
        except TimeoutError:
            told = (
                f"{self.counts}; last errors {self.errors[-TOLD:]}; in flight {self._in_flight()}; "
                f"{self._state()}"
            )
            raise AssertionError(f"{failure} in {deadline_s or DEADLINE_S:g} s: {told}") from None

    def _in_flight(self) -> list[str]:
        """Return the calls that have waited longest for an answer."""
        pairing = Pairing()
        for event in self.history.events:
            pairing.add(event)
        now_ns = time.monotonic_ns()
        return [
            f"{call.process}: {call.op} {call.asked} for {(now_ns - call.invoked_ns) / 1e9:.1f} s"
            for call in islice(pairing.pending.values(), TOLD)
        ]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the checkers."""
        return check(self.history.calls())

"""(e) The time from the send of a publish until the waiting consumer has the message.

The bound comes from the unavoidable parts: a sync of 256 bytes, and one HTTP round trip to the same server
(``GET /ping``). Both are measured between the same publishes. The round trip comes after the consumer's poll. So the
poll waits at the server before the message is published.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from benchmarks import peers, prepared
from benchmarks.figures import Question, Ratio, Run, Series, judged
from benchmarks.harness import Bench, Side, p50_ms
from benchmarks.load import Load, Wire, connect, http_request
from benchmarks.polls import decoded
from benchmarks.syncs import SyncFile

TOPIC = "bench-e"
DELIVERY, SYNC, PING = "publish to waiting consumer", "sync of 256 B", "HTTP round trip"
MUST = 2.0
_WAIT_S = 30


class Meter:
    """Measures delivery, sync and round trip in turn, and keeps the times of each."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._last: bytes | None = None
        self.taken: dict[str, array[int]] = {}

    async def run(self, seconds: float) -> Load:
        """Deliver one message after the other."""
        self.taken = {name: array("q") for name in (DELIVERY, SYNC, PING)}
        consumer = await connect(self._port, keep_body=True)
        publisher = await connect(self._port)
        file = SyncFile(peers.data_folder())
        requests = prepared.publishes(TOPIC, messages=1, requests=256)
        clock, began_ns = time.perf_counter_ns, time.perf_counter_ns()
        at = 0
        try:
            while clock() - began_ns < seconds * 1e9:
                await self._deliver(consumer, publisher, requests[at % 256], clock)
                self.taken[SYNC].append(file.sync())
                at += 1
        finally:
            file.close()
            consumer.close()
            publisher.close()
        return Load(at, (clock() - began_ns) / 1e9, self.taken[DELIVERY])

    async def _deliver(
        self, consumer: Wire, publisher: Wire, request: bytes, clock: Callable[[], int]
    ) -> None:
        start = self._last if self._last is not None else int(time.time_ns() // 1_000_000)
        arrived = consumer.begin(prepared.poll(TOPIC, start=start, wait_s=_WAIT_S))
        asked_ns = clock()
        await publisher.exchange(http_request("GET", "/ping"))
        sent_ns = clock()
        acknowledged = publisher.begin(request)
        await arrived
        now_ns = clock()
        self.taken[PING].append(sent_ns - asked_ns)
        self.taken[DELIVERY].append(now_ns - sent_ns)
        self._last = decoded(consumer.body)[-1].id
        await acknowledged


async def measure(bench: Bench) -> Question:
    """Measure, and return the figures."""
    question = Question(letter="e", title="publish to waiting consumer, one message at a time")
    server = await bench.server("ours", peers.OurServer)
    assert isinstance(server, peers.OurServer)
    async with bench.awake(server):
        await prepared.create_topic(server.port, TOPIC)
    meter = Meter(server.port)
    beside: dict[str, list[float]] = {SYNC: [], PING: []}

    def figure(load: Load) -> float:
        for name, values in beside.items():
            values.append(p50_ms(meter.taken[name]))
        return p50_ms(load.latencies_ns)

    side = Side(
        name=DELIVERY,
        run=meter.run,
        server=server,
        unit="ms",
        figure=figure,
    )
    await bench.measure(question, [side])
    delivery = question.named(DELIVERY)
    for name, values in beside.items():
        question.series.append(_of_the_same_runs(name, delivery, values))
    question.ratios.append(_bound(question))
    return question


def _of_the_same_runs(name: str, series: Series, values: list[float]) -> Series:
    runs = [
        Run(value=value, p50_ms=value, apart=run.apart)
        for value, run in zip(values, series.runs, strict=True)
    ]
    return Series(name=name, unit=series.unit, runs=runs, runs_wanted=series.runs_wanted)


def _bound(question: Question) -> Ratio:
    text = f"{DELIVERY} / ({SYNC} + {PING})"
    series = [question.named(name) for name in (DELIVERY, SYNC, PING)]
    why = next((one.unusable for one in series if one.unusable), "")
    delivery, sync, ping = (one.median_of_all or 0.0 for one in series)
    if why:
        return Ratio(
            text=text,
            value=delivery / (sync + ping) if sync + ping else None,
            verdict="no result",
            must=MUST,
            at_most=True,
            why=why,
        )
    delivery, sync, ping = (one.median or 0.0 for one in series)
    return judged(text, delivery / (sync + ping), must=MUST, at_most=True)

"""(d) Polls of 100,000 messages by one consumer: whole, and by pages of 1,000.

Our server has two sides: one answers from its cache, and one runs without a cache and answers from LevelDB. The
operating system has LevelDB's files in memory, as it has those of CDAP's server. Pages follow one another, each from
the last message of the previous page. The starts of pages are found before the run, so the load generator decodes
nothing during it. A reply must have at least the bytes of its messages.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from functools import partial

from benchmarks import peers, prepared
from benchmarks.figures import Question, compare
from benchmarks.harness import Bench, Side, not_measured
from benchmarks.load import Load, LoadFailed, ask, connect, skim
from broker.model import Message
from broker.wire.messages import PollDecoder

MESSAGES, PAGE = 100_000, 1_000
TOPIC = "bench-d"
CACHE, DISK, CDAP = "ours, from the cache", "ours, from disk", "CDAP's server"
_MESSAGE_BYTES = 1 + 20 + 2 + prepared.PAYLOAD_BYTES
_SOURCES = (
    (CACHE, "ours", peers.OurServer),
    (DISK, "ours, without a cache", partial(peers.OurServer, "--cache-bytes-max", "0")),
    (CDAP, "CDAP's server", peers.cdap),
)


async def measure(bench: Bench) -> Question:
    """Measure all sides, and return their figures."""
    question = Question(letter="d", title=f"polls of {MESSAGES:,} messages of 256 B, one consumer")
    sides: list[Side] = []
    for source, key, make in _SOURCES:
        server = await bench.server(key, make)
        if server is None:
            for name in (_whole(source), _paged(source)):
                not_measured(question, name, "msg/s", bench.absent(key))
            continue
        assert isinstance(server, peers.HttpServer)
        async with bench.awake(server):
            requests = await _fill(server.port)
        warm_s = bench.plan.cdap_warm_s if source == CDAP else None
        whole = [(prepared.poll(TOPIC), MESSAGES)]
        for name, polls in ((_whole(source), whole), (_paged(source), requests)):
            run = partial(consume, server.port, polls)
            sides.append(Side(name=name, run=run, server=server, warm_s=warm_s))
    await bench.measure(question, sides, run_s=bench.plan.long_run_s / 2)
    for named, must in ((_whole, 2.0), (_paged, 1.0)):
        theirs = question.named(named(CDAP))
        question.ratios.append(compare(question.named(named(CACHE)), theirs, must=must))
        question.ratios.append(compare(question.named(named(DISK)), theirs))
    return question


def _whole(source: str) -> str:
    return f"{source}, unlimited"


def _paged(source: str) -> str:
    return f"{source}, pages of {PAGE:,}"


async def _fill(port: int) -> list[tuple[bytes, int]]:
    """Publish the messages, read them once, and return the requests of all pages."""
    await prepared.create_topic(port, TOPIC)
    wire = await connect(port)
    for request in prepared.publishes(TOPIC, messages=1_000, requests=MESSAGES // 1_000):
        await wire.exchange(request)
    wire.close()
    messages = decoded(await ask(port, prepared.poll(TOPIC)))
    if len(messages) != MESSAGES:
        raise LoadFailed(f"{len(messages)} messages came back of {MESSAGES}")
    starts = [None, *(messages[at].id for at in range(PAGE - 1, MESSAGES - 1, PAGE))]
    return [(prepared.poll(TOPIC, start=start, limit=PAGE), PAGE) for start in starts]


def decoded(body: bytes) -> list[Message]:
    """Return the messages of a poll's reply. Raises an error if it is cut off."""
    decoder = PollDecoder()
    messages = decoder.feed(body)
    decoder.finish()
    return messages


async def consume(port: int, polls: Sequence[tuple[bytes, int]], seconds: float) -> Load:
    """Poll one after the other until the time is over."""
    wire = await skim(port)
    latencies, count, at = array("q"), 0, 0
    began_ns = now_ns = time.perf_counter_ns()
    while now_ns - began_ns < seconds * 1e9:
        request, expected = polls[at]
        size = await wire.exchange(request)
        if size < expected * _MESSAGE_BYTES:
            raise LoadFailed(f"{size} bytes are less than {expected} messages")
        before_ns, now_ns = now_ns, time.perf_counter_ns()
        latencies.append(now_ns - before_ns)
        count += expected
        at = (at + 1) % len(polls)
    wire.close()
    return Load(count, (now_ns - began_ns) / 1e9, latencies)

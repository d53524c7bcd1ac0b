"""A stream job with an operator of every kind, as a process that can be killed, and its expected output.

    python -m tests.integration.spark.mortal_job URL PREFIX FOLDER

It prints *ready* once the job runs. At the end of its input it processes all available messages, and ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typing_extensions import override

from broker.client import SyncClient
from broker.streams import Accumulator, Job, Json, Processor, State, StreamBuilder, Window, tumbling
from tests.integration.spark.sessions import spark_session

READY = "ready\n"
ENDS = ("running", "windows", "native", "latest", "pairs", "processed")
WORDS = ("anna", "ben", "carl", "dora", "emil")
BAD = b"no JSON"
BAD_EVERY = 25
WINDOW_S = 20
SCHEMA = "w STRING, n BIGINT, t BIGINT"


class Numbers(Accumulator[dict[str, Any], list[int]]):
    """All numbers, in order."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    @override
    def add(self, value: dict[str, Any]) -> None:
        self._numbers.append(value["n"])

    @override
    def result(self, window: Window | None) -> list[int]:
        return sorted(self._numbers)


class Changes(Processor[dict[str, Any], list[int]]):
    """Gives each number with the one before it of the same word."""

    @override
    def process(
        self, key: Any, value: dict[str, Any], time_ms: int, state: State
    ) -> Iterable[list[int]]:
        before, state.value = state.value, value["n"]
        return [] if before is None else [[before, value["n"]]]


def events(count: int) -> list[dict[str, Any]]:
    """Return the events of a topic, which follow from their number."""
    return [{"w": WORDS[n * n % 11 % 5], "n": n, "t": n * 1000} for n in range(count)]


def payloads(first: int, count: int) -> list[bytes]:
    """Return the messages from a number on, bad ones between them."""
    found = []
    for event in events(first + count)[first:]:
        if event["n"] % BAD_EVERY == 0:
            found.append(BAD)
        found.append(json.dumps(event).encode())
    return found


def job(prefix: str) -> Job:
    """Return the job."""
    builder = StreamBuilder("mortal", lateness="0s", idle="1h", dead_letters=f"{prefix}-dead")
    words = builder.source(prefix, Json()).select_timestamp(lambda e: e["t"])
    keyed = words.key_by(lambda e: e["w"])
    keyed.count().to_stream().sink(f"{prefix}-running", Json())
    counted = keyed.window(tumbling(f"{WINDOW_S}s")).aggregate(Numbers)
    counted.to_stream(lambda w, n, window: [w, window.start_ms // 1000, n]).sink(
        f"{prefix}-windows", Json()
    )
    columns = builder.source(prefix, Json(SCHEMA), name="columns").select_timestamp("t")
    native = columns.key_by("w").window(tumbling(f"{WINDOW_S}s")).sum("n")
    native.to_stream(
        "array(key, CAST(unix_seconds(window.start) AS STRING), CAST(value AS STRING))"
    ).sink(f"{prefix}-native", Json())
    odd, even = words.filter(lambda e: e["n"] % 2), words.filter(lambda e: not e["n"] % 2)
    by_word = odd.left_join(even).where(lambda e: e["w"]).equal_to(lambda e: e["w"])
    by_word.apply(lambda o, e: [o["n"], e and e["n"]]).sink(f"{prefix}-latest", Json())
    pairs = by_word.window(tumbling(f"{WINDOW_S}s"))
    pairs.apply(lambda o, e: [o["n"], e and e["n"]]).sink(f"{prefix}-pairs", Json())
    keyed.process(Changes()).to_stream(lambda _, pair, __: pair).sink(f"{prefix}-processed", Json())
    return builder.build()


class Expected:
    """The expected content of the topics after so many events."""

    def __init__(self, count: int) -> None:
        self._events = events(count)
        self._closed_s = (count - 1) // WINDOW_S * WINDOW_S
        """Windows that begin at this time or later are open."""

    def of(self, end: str) -> list[Any]:
        found: list[Any] = getattr(self, end)()
        return sorted(found, key=json.dumps)

    def running(self) -> list[Any]:
        counts: Counter[str] = Counter()
        found = []
        for event in self._events:
            counts[event["w"]] += 1
            found.append([event["w"], counts[event["w"]]])
        return found

    def _by_window(self) -> dict[tuple[str, int], list[int]]:
        windows: dict[tuple[str, int], list[int]] = defaultdict(list)
        for event in self._events:
            start = event["n"] // WINDOW_S * WINDOW_S
            if start < self._closed_s:
                windows[event["w"], start].append(event["n"])
        return windows

    def windows(self) -> list[Any]:
        return [[word, start, numbers] for (word, start), numbers in self._by_window().items()]

    def native(self) -> list[Any]:
        return [[w, str(start), str(sum(all_))] for (w, start), all_ in self._by_window().items()]

    def latest(self) -> list[Any]:
        even: dict[str, int] = {}
        found = []
        for event in self._events:
            if event["n"] % 2:
                found.append([event["n"], even.get(event["w"])])
            else:
                even[event["w"]] = event["n"]
        return found

    def pairs(self) -> list[Any]:
        found: list[Any] = []
        everything: dict[tuple[str, int], list[int]] = defaultdict(list)
        for event in self._events:
            everything[event["w"], event["n"] // WINDOW_S * WINDOW_S].append(event["n"])
        for (_, start), numbers in everything.items():
            odd, even = [n for n in numbers if n % 2], [n for n in numbers if not n % 2]
            found += [[o, e] for o in odd for e in even]
            if not even and start < self._closed_s:
                found += [[o, None] for o in odd]
        return found

    def processed(self) -> list[Any]:
        last: dict[str, int] = {}
        found = []
        for event in self._events:
            if event["w"] in last:
                found.append([last[event["w"]], event["n"]])
            last[event["w"]] = event["n"]
        return found


def check(client: SyncClient, prefix: str, count: int) -> None:
    """Check that every topic has its expected content, and no message twice."""
    expected = Expected(count)
    for end in ENDS:
        found = [json.loads(message.payload) for message in client.poll(f"{prefix}-{end}")]
        assert sorted(found, key=json.dumps) == expected.of(end), end
    dead = [message.headers["operator"] for message in client.poll(f"{prefix}-dead")]
    bad = -(-count // BAD_EVERY)
    assert Counter(dead) == {b"source-1": bad, b"columns": bad}


def main(url: str, prefix: str, folder: str) -> None:
    local = Path(folder) / f"spark-{os.getpid()}"
    spark = spark_session(local, **{"spark.sql.shuffle.partitions": "1"})
    mortal = job(prefix)
    checkpoint = f"{folder}/checkpoint"
    mortal.start(spark, checkpoint=checkpoint, url=url)
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.read()
    mortal.stop()
    job(prefix).run_available(spark, checkpoint=checkpoint, url=url)
    spark.stop()


if __name__ == "__main__":
    # The functions and classes of a job must be those of a module, for Spark's workers.
    from tests.integration.spark.mortal_job import main as run

    run(*sys.argv[1:])

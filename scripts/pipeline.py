"""Run a whole data pipeline: publish events, count them by a Spark job, tail the counts, check them by a batch job.

::

    events.py ──> audit/events ──> counts.py (streaming) ──> audit/counts ──> printed here
                       └─────────> report.py (batch, the same time range) ──> must count the same

All of it runs on this machine, in a temporary folder. The script exits with 0 if both jobs counted the same, and with
1 if not. ``WINDOWS=n`` sets how many windows of counts the script waits for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from broker.client import SyncClient
from broker.errors import BrokerError
from scripts.demo import Broker, DemoError, say, stopped

PROGRAMS = Path(__file__).parents[1] / "examples" / "pipeline"
EVENTS, COUNTS = "audit/events", "audit/counts"
WINDOWS = int(os.environ.get("WINDOWS") or 3)
WAIT_S = 60.0
LOOK_S = 1.0
STOP_S = 30.0


@contextmanager
def running(name: str, folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run one of the example's programs inside the block. Raises DemoError with its log if it ended by itself."""
    log = folder / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / f"{name}.py")],
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
            text=True,
        )
    failure: DemoError | None = None
    try:
        yield process
    except DemoError as error:
        failure = error
    finally:
        has_ended = process.poll() is not None
        stopped(process, STOP_S)
    if has_ended:
        raise DemoError(f"{name}.py ended:\n{log.read_text()[-4000:]}") from failure
    if failure is not None:
        raise failure


def tail(client: SyncClient, jobs: Sequence[subprocess.Popen[str]]) -> list[dict[str, str]]:
    """Print the counts as they come, until there are enough windows; return the counts.

    The job publishes all complete windows of a micro-batch at once, and one poll returns all of them.
    Raises DemoError if no counts come for ``WAIT_S``, or none come and a job has ended.
    """
    counts: list[dict[str, str]] = []
    last: bytes | None = None
    due_s = time.monotonic() + WAIT_S
    while len({count["start"] for count in counts}) < WINDOWS:
        page = client.poll(COUNTS, last, inclusive=False, wait_s=LOOK_S)
        if not page:
            if time.monotonic() > due_s or any(job.poll() is not None for job in jobs):
                raise DemoError(f"no counts within {WAIT_S:g} s")
            continue
        due_s = time.monotonic() + WAIT_S
        last = page[-1].id
        found = [json.loads(message.payload) for message in page]
        for count in sorted(found, key=lambda count: (count["start"], count["program"])):
            say(f"  {count['start']}  {count['program']:<10}{count['events']:>6}")
        counts += found
    return counts


def reported(url: str, counts: list[dict[str, str]]) -> Counter[str]:
    """Return the batch job's counts for the time range of the windows. Raises DemoError."""
    ends = [min(row["start"] for row in counts), max(row["end"] for row in counts)]
    times_ms = [str(int(datetime.fromisoformat(end).timestamp() * 1000)) for end in ends]
    say(f"the batch job over the same time range, {ends[0]} to {ends[1]}:")
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "report.py"), *times_ms],
        env={**os.environ, "BROKER_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"report.py ended:\n{done.stderr[-4000:]}")
    say(done.stdout.rstrip())
    return Counter({line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()})


def show(folder: Path, broker: Broker) -> None:
    """Run the pipeline. Raises DemoError."""
    broker.start()
    variables = {"BROKER_URL": broker.url, "CHECKPOINT": str(folder / "checkpoint")}
    with SyncClient(broker.url) as client:
        for topic in (EVENTS, COUNTS):
            client.create_topic(topic)
        say(f"a broker at {broker.url}; Spark starts, and counts {EVENTS} into {COUNTS}:")
        with (
            running("events", folder, variables) as events,
            running("counts", folder, variables) as counting,
        ):
            counts = tail(client, [events, counting])
    streamed: Counter[str] = Counter()
    for row in counts:
        streamed[row["program"]] += int(row["events"])
    found = reported(broker.url, counts)
    if found != streamed:
        raise DemoError(
            f"the jobs differ: {dict(streamed)} in the stream, {dict(found)} in the batch"
        )
    say(f"both jobs counted the same {streamed.total():,} events")
    broker.stop()


def main() -> int:
    """Run the pipeline; return the exit code."""
    if shutil.which("java") is None:
        print("pipeline: Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="broker-pipeline-"))
    broker = Broker(folder)
    try:
        show(folder, broker)
    except (BrokerError, DemoError) as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 1
    finally:
        broker.kill()
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

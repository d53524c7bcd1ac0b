"""Cases of a standalone broker over LevelDB: wrong clocks, sweeps, and a transaction without an end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Final
from urllib.request import urlopen

from broker.client import Client
from broker.clock import SystemClock
from broker.testing.broker_process import BrokerProcess
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene
from chaos.clocks import ClockOffsets
from chaos.transactions_model import TransactionModel
from chaos.workloads.client_process import TopicTarget

BROKER: Final = "broker"
HOUR_S: Final = 3600
BACK_S: Final = 30
AHEAD_S: Final = 90
TTL_S: Final = 60
SHORT_TTL_S: Final = 1
STUCK_S: Final = 2.0
ASK_S: Final = 5.0


def broker_of(scene: Scene, *flags: str, clocks: ClockOffsets | None = None) -> BrokerProcess:
    """Return a broker with the mutant of the scene; entering the context starts it."""
    environment = None if clocks is None else clocks.environment(BROKER)
    return BrokerProcess(scene.folder / "data", flags, environment=environment, mutant=scene.mutant)


def clocks_of(scene: Scene) -> ClockOffsets:
    """Return the clock of the broker, which can be set. Raises ClocksMissing."""
    return ClockOffsets(scene.folder / "clocks")


def _fetch(url: str) -> str:
    with urlopen(url, timeout=ASK_S) as reply:  # noqa: S310  This case started the broker.
        text: str = reply.read().decode()
        return text


def _asked_clock(environment: dict[str, str]) -> float:
    """Return the time that a process with the broker's clock sees, in seconds since 1970."""
    command = [sys.executable, "-c", "import time; print(time.time())"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


async def clock_back(scene: Scene) -> None:
    """Set the clock back during publishes, and restart the broker with that clock."""
    clocks = clocks_of(scene)
    with broker_of(scene, clocks=clocks) as broker:
        scene.serve_from(broker.url)
        topic = await scene.topic()
        async with scene.process("publisher") as process:
            await scene.publish(process, topic, 20)
            clocks.set(BROKER, -BACK_S)
            await scene.publish(process, topic, 20)
            await asyncio.to_thread(broker.kill)
            place = len(broker.log())
            restarted_s = _now_ms() / 1000
            await asyncio.to_thread(broker.start)
            await scene.publish(process, topic, 20)
        starts = [
            json.loads(line)["time"]
            for line in broker.log()[place:].splitlines()
            if "node started" in line
        ]
        real = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(restarted_s))
        scene.fault(
            "the clock at the restart was behind the earlier clock",
            happened=bool(starts) and starts[0] < real,
            started_at=starts,
        )
        await scene.finish(topic)


CLOCK_BACK = Case(
    number=8,
    name="clock-back",
    title="A node's clock goes backwards",
    happens=(
        "A broker's wall clock is set back 30 s (libfaketime) while it serves. Then it is killed and started."
    ),
    protects="A new id is above the last id of the log, for any time of the clock.",
    mutant="clock-ids",
    without="Later messages have lower ids, and stand before messages that were already read.",
    violations=frozenset({"reordered", "lost_prefix", "lost_tail", "lost_middle", "id_reused"}),
    where=CaseTarget.ALONE,
    play=clock_back,
)


async def clock_ahead(scene: Scene) -> None:
    """Set the clock an hour ahead during publishes, and back."""
    clocks = clocks_of(scene)
    with broker_of(scene, clocks=clocks) as broker:
        scene.serve_from(broker.url)
        topic = await scene.topic(ttl_s=TTL_S)
        async with scene.process("publisher") as process:
            await scene.publish(process, topic, 10)
            clocks.set(BROKER, HOUR_S)
            labels = process.labels(1)
            await process.publish(topic, labels, key="in-the-future")
            await scene.publish(process, topic, 10)
            environment = {**os.environ, **clocks.environment(BROKER)}
            seen_s = await asyncio.to_thread(_asked_clock, environment)
            off_s = seen_s - _now_ms() / 1000
            clocks.set(BROKER, 0)
            again = await process.publish(topic, labels, key="in-the-future")
            await scene.publish(process, topic, 10)
        scene.fault(
            "the clock was an hour ahead while messages were published",
            happened=off_s > HOUR_S / 2,
            ahead_s=round(off_s),
            key_still_known=again.replayed,
        )
        await _check_times(scene, topic, broker.url)
        await scene.finish(topic)


async def _check_times(scene: Scene, topic: TopicTarget, url: str) -> None:
    async with Client(url) as client:
        messages = await client.poll(topic.id)
    ahead_s = (max(message.timestamp_ms for message in messages) - _now_ms()) / 1000
    scene.evidence["newest_id_ahead_s"] = round(ahead_s, 1)
    if ahead_s > TTL_S:
        scene.violation("time_poisoned", f"the ids are {ahead_s:.0f} s ahead of the clock")


CLOCK_AHEAD = Case(
    number=10,
    name="clock-ahead",
    title="A clock that is far ahead for a moment spoils all later ids",
    happens="A broker's wall clock is an hour ahead (libfaketime) during publishes, and then right again.",
    protects=(
        "The node compares its wall clock with the boot clock: a jump counts only if it lasts a minute. Ids, "
        "lifetimes and idempotency keys go by this clock."
    ),
    mutant="boot-clock",
    without="Ids are an hour ahead for the topic's whole life, because ids never fall.",
    violations=frozenset({"time_poisoned"}),
    where=CaseTarget.ALONE,
    play=clock_ahead,
)


async def sweeping(scene: Scene) -> None:
    """Sweep with a clock that is ahead from the start, by more than a lifetime."""
    clocks = clocks_of(scene)
    flags = ("--sweep-interval", "0.1", "--sweep-rest", "0")
    with broker_of(scene, *flags, clocks=clocks) as broker:
        scene.serve_from(broker.url)
        topic, short = await scene.topic(ttl_s=TTL_S), await scene.topic(ttl_s=SHORT_TTL_S)
        async with scene.process("publisher") as process:
            await scene.publish(process, topic, 20)
            await scene.publish(process, short, 20)
        await asyncio.to_thread(broker.kill)
        clocks.set(BROKER, AHEAD_S)
        await asyncio.to_thread(broker.start)

        async def swept() -> float | None:
            text = await asyncio.to_thread(_fetch, f"{broker.url}/metrics")
            rows = [
                line for line in text.splitlines() if line.startswith("broker_swept_rows_total")
            ]
            return sum(float(line.split()[-1]) for line in rows) or None

        removed = await scene.until(swept, "no row was swept")
        await asyncio.to_thread(broker.stop)
        clocks.set(BROKER, 0)
        await asyncio.to_thread(broker.start)
        scene.fault(
            "the sweeper removed rows while the clock was ahead by more than a lifetime",
            happened=removed > 0,
            ahead_s=AHEAD_S,
            rows_removed=removed,
        )
        await scene.finish(topic, short)


STALE_SWEEPER = Case(
    number=24,
    name="stale-sweeper",
    title="The sweeper goes by wrong facts, and removes live messages",
    happens=(
        "A broker is started with a clock that is 90 s ahead (libfaketime), more than the lifetime of its "
        "messages, and sweeps. Then the clock is right again."
    ),
    protects=(
        "The sweeper leaves a margin, waits after a start, reads the record again, and stays below the pointer."
    ),
    mutant="sweep-margin",
    without="Live messages are lost.",
    violations=frozenset({"lost_prefix", "lost_middle", "lost_tail", "expired_early"}),
    where=CaseTarget.ALONE,
    play=sweeping,
)


async def stuck(scene: Scene) -> None:
    """Leave a transaction without a commit; consumers wait until it times out."""
    model = TransactionModel(_now_ms())
    with broker_of(scene) as broker:
        scene.serve_from(broker.url)
        topic = await scene.topic()
        dead = model.begin(_now_ms(), int(STUCK_S * 1000)).pointer
        async with scene.process("dies-before-its-commit") as process:
            await process.publish(topic, process.labels(1), pointer=dead)
        async with scene.process("lives") as process:
            alive = model.begin(_now_ms(), HOUR_S * 1000).pointer
            await process.publish(topic, process.labels(1), pointer=alive)
            model.commit(_now_ms(), alive)
        async with scene.process("consumer") as process:
            found = await process.poll(topic, snapshot=model.look(_now_ms()))

            async def shown() -> int | None:
                seen = await process.poll(topic, snapshot=model.look(_now_ms()))
                return len(seen) or None

            freed = await scene.until(shown, "the topic is stuck")
        scene.fault(
            "a transaction in progress held consumers back",
            happened=found == [] and dead in model.invalid,
            shown_at_first=len(found),
            shown_after_its_time_out=freed,
        )
        if freed != 1:
            scene.violation(
                "dirty_read", f"a read shows {freed} messages, one of an invalid transaction"
            )
        await scene.finish(topic)


def _now_ms() -> int:
    return SystemClock().now_ms()


STUCK_TRANSACTION = Case(
    number=14,
    name="stuck-transaction",
    title="A client dies between publish and commit, and consumers wait",
    happens=(
        "The client of a transaction publishes, and then dies. Another transaction commits. Consumers read "
        "with the snapshots of a model of the transaction service, in which transactions time out."
    ),
    protects="The time-out makes the transaction invalid: snapshots then skip it, and the topic goes on.",
    mutant="in-progress",
    without="A poll skips open transactions, and shows messages of transactions that may never commit.",
    violations=frozenset({"dirty_read"}),
    where=CaseTarget.ALONE,
    play=stuck,
)

CASES = (CLOCK_BACK, CLOCK_AHEAD, STALE_SWEEPER, STUCK_TRANSACTION)

"""Cases of disks: lost unsynced bytes, a full disk, a flipped bit."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from broker.client import BrokerError
from broker.local.servers import ServerFailed
from broker.testing.broker_process import BrokerProcess
from chaos import full_disk
from chaos.cases.case import Case, CaseTarget
from chaos.cases.harness import Scene
from chaos.cases.one_broker import broker_of
from chaos.full_disk import found_in, history_of
from chaos.nemeses.disk import Flipped
from chaos.synced import cut_copy, replay, traced
from chaos.workloads.client_process import TopicTarget

ACKNOWLEDGED: Final = 60
RUN_S: Final = 90.0
MESSAGES: Final = 400
_PADDING: Final = b"x" * 500


async def power_cut(scene: Scene) -> None:
    """Kill an appender, and cut its files at the last synced byte."""
    store, trace, copy = scene.folder / "store", scene.folder / "trace", scene.folder / "copy"
    if shutil.which("strace") is None:
        scene.fault("a power cut", happened=False, missing="strace")
        return
    lines = await asyncio.to_thread(_appended, store, trace, scene.mutant)
    disk = await asyncio.to_thread(_cut, store, trace, copy)
    final, why = await asyncio.to_thread(found_in, copy)
    acknowledged = sum(line.startswith("ok ") for line in lines)
    scene.fault(
        "the store was killed at work, and its files were cut at the last sync",
        happened=acknowledged >= ACKNOWLEDGED,
        acknowledged=acknowledged,
        bytes_cut_off=disk,
    )
    scene.history.events += history_of(lines, final, why).events


def _appended(store: Path, trace: Path, mutant: str) -> list[str]:
    """Append until ``ACKNOWLEDGED`` batches are acknowledged, kill the appender, and return its lines."""
    command = [
        sys.executable,
        "-m",
        "chaos.appender",
        str(store),
        "--depth",
        "4",
        *_lacking(mutant),
    ]
    with subprocess.Popen(traced(trace, command), stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline().split()[1])
        said: list[str] = []
        for line in tracer.stdout:
            said.append(line.strip())
            if len(said) == ACKNOWLEDGED + 1:
                os.kill(pid, 9)
        return said


def _lacking(mutant: str) -> list[str]:
    """Return the appender's option for a mutant."""
    return ["--mutant", mutant] if mutant else []


def _cut(store: Path, trace: Path, copy: Path) -> int:
    with trace.open() as lines:
        disk = replay(lines)
    cut_copy(store, disk, copy)
    return sum(
        written - disk.synced.get(path, 0)
        for path, written in disk.written.items()
        if path.endswith(".log")
    )


UNSYNCED_TAIL = Case(
    number=6,
    name="unsynced-tail",
    title="The power fails, and unsynced bytes are lost",
    happens=(
        "A store over LevelDB is killed at work. Every file is then cut at the last byte that a completed "
        "sync covered, by the trace of its system calls."
    ),
    protects="The store acknowledges a write only after its sync.",
    mutant="synced",
    without="Acknowledged messages are lost, or the database can't be read.",
    violations=frozenset({"lost_tail", "lost_middle", "lost_prefix", "unreadable"}),
    where=CaseTarget.ALONE,
    play=power_cut,
)


async def hole(scene: Scene) -> None:
    """Fill the disk, free some room, go on, and kill the store."""
    directory = scene.folder / "disk"
    await asyncio.to_thread(directory.mkdir)
    command = full_disk.command(
        directory, "--write-buffer-bytes", str(64 << 20), *_lacking(scene.mutant)
    )
    done = await asyncio.to_thread(_on_a_full_disk, command)
    if done.returncode:
        scene.fault("the disk was full", happened=False, failed=done.stderr.strip()[-300:])
        return
    seen = json.loads(done.stdout)
    scene.fault(
        "the disk was full, writes failed, and then there was room again",
        happened=seen["unknown"] > 0 and seen["acknowledged"][1] > 0,
        acknowledged=seen["acknowledged"],
        unknown=seen["unknown"],
    )
    for name in seen["violations"]:
        why = seen["unreadable"] or "in the history of the appends to the full disk"
        scene.violation(name, why)


def _on_a_full_disk(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S)


HOLE = Case(
    number=19,
    name="hole",
    title="A later write survives, but an earlier one does not",
    happens=(
        "A store's disk, a real one of 40 MiB, is full, and writes fail. Then there is room again; the store "
        "goes on, and is killed. LevelDB does not survive a failed write: later writes of the same database "
        "object lie behind a torn record, even after their sync."
    ),
    protects="After any failed write, the store closes the database, and opens it again before the next write.",
    mutant="leveldb-reopen",
    without=(
        "Messages acknowledged after the full disk are lost at the next crash, or the database can't be read."
    ),
    violations=frozenset({"lost_tail", "lost_middle", "unreadable"}),
    where=CaseTarget.ALONE,
    play=hole,
)


async def flipped(scene: Scene) -> None:
    """Flip a bit in a table; the broker must refuse to start or to answer, and keep all files."""
    with broker_of(scene, "--write-buffer-bytes", "65536") as broker:
        scene.serve_from(broker.url)
        topic = await scene.topic()
        async with scene.process("publisher") as process:
            labels = [f"{process.labels(1)[0]}:{_PADDING.decode()}" for _ in range(MESSAGES)]
            for label in labels:
                await process.publish(topic, [label])
        await asyncio.to_thread(broker.stop)
        flipped_bit = await asyncio.to_thread(_in_a_payload, broker.data_dir)
        await asyncio.to_thread(flipped_bit.flip)
        met = await _met(scene, broker, topic, labels)
        kept = await asyncio.to_thread(flipped_bit.path.exists)
        scene.fault(
            "a bit of a table was flipped, and the broker read it",
            happened=met is not None,
            met=met,
            table_kept=kept,
        )
        if not kept:
            scene.violation("cleaned_up", f"{flipped_bit.path.name} was removed")
            return
        await asyncio.to_thread(flipped_bit.flip)
        await asyncio.to_thread(broker.start)
        await scene.finish(topic)


def _in_a_payload(directory: Path) -> Flipped:
    """Return a bit of a payload in the second half of the largest table."""
    table = max(directory.rglob("*.ldb"), key=lambda path: path.stat().st_size)
    data = table.read_bytes()
    return Flipped(table, data.index(_PADDING, len(data) // 2) + len(_PADDING) // 2, 4)


async def _met(
    scene: Scene, broker: BrokerProcess, topic: TopicTarget, labels: list[str]
) -> str | None:
    """Start the broker with the damaged file, and read all messages.

    Returns the refusal, or the kind of the wrong answer; None if the read shows no damage.
    """
    try:
        await asyncio.to_thread(broker.start)
    except ServerFailed as error:
        return str(error).strip().splitlines()[-1][:300]
    try:
        async with scene.process("meets-the-damage", deadline_s=10.0) as process:
            shown = await process.poll(topic)
    except BrokerError as error:
        return f"{type(error).__name__}: {error.message}"
    else:
        if len(shown) < MESSAGES:
            scene.violation("lost_middle", f"a read shows {len(shown)} of {MESSAGES} messages")
        is_right = [message.payload for message in shown] == [label.encode() for label in labels]
        return None if is_right else "a read shows other messages than were published"
    finally:
        await asyncio.to_thread(broker.kill)


CORRUPT_STORE = Case(
    number=18,
    name="corrupt-store",
    title="A bit of the local store is wrong",
    happens="A bit in a table of a stopped broker's LevelDB is flipped, and the broker is started.",
    protects="The store verifies checksums at every read. It refuses damaged data, and never removes it.",
    mutant="checksums",
    without="A read shows the damaged payload as if it had been published.",
    violations=frozenset({"phantom", "lost_middle", "changed_read", "unreadable"}),
    where=CaseTarget.ALONE,
    play=flipped,
)

CASES = (UNSYNCED_TAIL, HOLE, CORRUPT_STORE)

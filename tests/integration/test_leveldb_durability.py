"""Acknowledged appends are on disk: the tests count syncs, and simulate power cuts, a full disk and a second process."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.errors import StorageCorrupt, Unavailable
from broker.storage.leveldb.table import open_table
from chaos import full_disk
from chaos.appender import ids_in, rows_until
from chaos.synced import Disk, cut_copy, replay, traced

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CUTS = int(os.environ.get("BROKER_CUTS", "9"))
TABLE_APPENDER = "tests.kit.table_appender"
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


class Life(NamedTuple):
    """A run of the appender until it was killed."""

    acknowledged: list[str]
    disk: Disk


def live(
    directory: Path,
    trace: Path,
    acknowledgements: int,
    *options: str,
    program: str = "chaos.appender",
) -> Life:
    """Append to a store until so many appends were acknowledged; kill."""
    child = [sys.executable, "-m", program, str(directory), *options]
    acknowledged: list[str] = []
    with subprocess.Popen(traced(trace, child), stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline().split()[1])
        for line in tracer.stdout:
            if line.startswith("ok "):
                acknowledged.append(line.split()[1])
            if len(acknowledged) == acknowledgements:
                os.kill(pid, 9)
                break
        # Acknowledgements that it printed just before its death count, too.
        rest = [line for line in tracer.stdout.read().split("\n") if line.startswith("ok ")]
        acknowledged += [line.split()[1] for line in rest]
    with trace.open() as lines:
        return Life(acknowledged, replay(lines))


async def missing(directory: Path, acknowledged: list[str]) -> list[str]:
    """Return the acknowledged batches that are missing in a store."""
    there = set(await ids_in(directory))
    return [last for last in acknowledged if not there.issuperset(rows_until(bytes.fromhex(last)))]


@needs_strace
async def test_after_each_power_cut_all_acknowledged_appends_are_there(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    directory = tmp_path / "0"
    for number in range(1, CUTS + 1):
        # Many appends at once and few; payloads so small and large that syncs fall everywhere.
        depth = ("--depth", str(1 + number % 5), "--payload-bytes", str(50 + 997 * (number % 7)))
        life = live(directory, tmp_path / "trace", 20 + 13 * (number % 9), *depth)
        acknowledged += life.acknowledged
        copy = tmp_path / str(number)
        cut_copy(directory, life.disk, copy)
        shutil.rmtree(directory)
        directory = copy
        assert await missing(directory, acknowledged) == [], f"after cut {number}"
    assert len(acknowledged) > 20 * CUTS


@needs_strace
async def test_a_store_that_never_syncs_fails_the_power_cut(tmp_path: Path) -> None:
    life = live(tmp_path / "store", tmp_path / "trace", 50, "--mutant", "synced")
    cut_copy(tmp_path / "store", life.disk, tmp_path / "copy")
    try:
        gone = await missing(tmp_path / "copy", life.acknowledged)
    except StorageCorrupt:
        return
    assert len(gone) >= 40


@needs_strace
@pytest.mark.parametrize(("options", "is_synced"), [([], True), (["--mutant", "synced"], False)])
def test_every_acknowledged_append_was_synced(
    tmp_path: Path, options: list[str], is_synced: bool
) -> None:
    life = live(tmp_path / "store", tmp_path / "trace", 200, *options)
    assert (life.disk.syncs_of(".log") >= len(life.acknowledged)) is is_synced


@needs_strace
def test_changes_of_several_logs_share_syncs(tmp_path: Path) -> None:
    rows = ("--rows", "16")
    life = live(tmp_path / "store", tmp_path / "trace", 400, *rows, program=TABLE_APPENDER)
    assert 0 < life.disk.syncs_of(".log") < len(life.acknowledged) / 2


def on_a_full_disk(directory: Path, *options: str) -> dict[str, Any]:
    directory.mkdir()
    run = subprocess.run(
        full_disk.command(directory, *options),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if run.returncode and ("mount" in run.stderr or "unshare" in run.stderr):
        pytest.skip("this machine allows no mount namespace")
    assert run.returncode == 0, run.stderr
    seen: dict[str, Any] = json.loads(run.stdout)
    return seen


# With a large buffer the log meets the full disk, with a small one often a table.
LARGE_BUFFER, SMALL_BUFFER = str(64 << 20), str(256 << 10)


@pytest.mark.parametrize("buffer", [LARGE_BUFFER, SMALL_BUFFER])
def test_on_a_full_disk_reads_go_on_and_writing_resumes(tmp_path: Path, buffer: str) -> None:
    seen = on_a_full_disk(tmp_path / "disk", "--write-buffer-bytes", buffer)
    before, after = seen["acknowledged"]
    assert before > 100
    assert after >= 60
    assert seen["unknown"] >= 1
    assert len(seen["read_while_full"]) >= 4
    assert all(rows >= 3 * before for rows in seen["read_while_full"])
    assert (seen["unreadable"], seen["violations"]) == ("", [])


def test_a_store_that_goes_on_with_a_failed_database_loses_messages(tmp_path: Path) -> None:
    options = ("--write-buffer-bytes", LARGE_BUFFER, "--mutant", "leveldb-reopen")
    seen = on_a_full_disk(tmp_path / "disk", *options)
    assert sum(seen["acknowledged"]) > 100
    # A lost end, or a hole in the middle; the store itself finds a hole and refuses to skip it.
    assert {"lost_tail", "lost_middle", "unreadable"}.intersection(seen["violations"])


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    child = [sys.executable, "-m", "chaos.appender", str(tmp_path / "store")]
    process = await asyncio.create_subprocess_exec(*child, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        pid = (await process.stdout.readline()).split()[1].decode()
        assert await process.stdout.readline()  # It has claimed, so the store is open.
        with pytest.raises(Unavailable, match=f"in use by another process .pid {pid}."):
            await open_table(tmp_path / "store")
    finally:
        process.kill()
        await process.communicate()
    table = await open_table(tmp_path / "store")
    await table.close()

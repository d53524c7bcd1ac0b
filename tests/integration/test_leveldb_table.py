"""The table over LevelDB, killed at each step of its opening and cut off its power."""

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.errors import StorageCorrupt
from broker.storage.leveldb.table import open_table
from chaos.synced import Disk, cut_copy, replay, scramble_copy, traced
from tests.kit.table_appender import changes_made

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CUTS = int(os.environ.get("BROKER_CUTS", "12"))
APPENDER = "tests.kit.table_appender"
CALLS_OF_OPENING = {"fdatasync": 3, "fsync": 1, "rename": 2, "unlink": 2, "ftruncate": 1}
"""The calls at which it is killed, and how many an opening makes at least."""
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


class Life(NamedTuple):
    """A run of the appender: the last acknowledged change of each row, and how it ended."""

    acknowledged: dict[int, int]
    was_open: bool
    was_killed: bool


def live(directory: Path, *options: str, under: tuple[str, ...] = (), until: int = 0) -> Life:
    """Run the appender to its end. This function kills it after ``until`` acknowledgements; 0: it does not."""
    command = [*under, sys.executable, "-B", "-m", APPENDER, str(directory), *options]
    acknowledged: dict[int, int] = {}
    seen, was_open = 0, False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline().split()[1])
        for line in child.stdout:
            was_open = was_open or line == "open\n"
            if line.startswith("ok ") and line.endswith("\n"):
                row, number = map(int, line.split()[1:])
                acknowledged[row] = number
                seen += 1
                if seen == until:
                    os.kill(pid, signal.SIGKILL)
    return Life(acknowledged, was_open, child.returncode != 0)


def stored(directory: Path) -> dict[int, int]:
    """Open and read everything; each change that is there is whole."""

    async def read() -> dict[int, int]:
        table = await open_table(directory)
        try:
            return await changes_made(table)
        finally:
            await table.close()

    return asyncio.run(read())


def lost(directory: Path, acknowledged: dict[int, int]) -> list[int]:
    """Return the rows that lack an acknowledged change."""
    made = stored(directory)
    return [row for row, number in acknowledged.items() if made.get(row, 0) < number]


def a_store(directory: Path) -> dict[int, int]:
    """Make a store that was closed cleanly, with tables and a log; return its changes."""
    life = live(directory, "--rows", "4", "--bytes", "3000", until=300)
    assert lost(directory, life.acknowledged) == []
    assert (directory / "CLEAN").exists()
    return stored(directory)


def test_a_kill_at_any_step_of_python_leaves_a_store_that_opens(tmp_path: Path) -> None:
    made = a_store(tmp_path / "store")
    for start in ("store", "new"):
        for step in range(1, 200):
            directory = tmp_path / f"{start}-{step}"
            if start == "store":
                shutil.copytree(tmp_path / "store", directory)
            life = live(directory, "--only-open", "--die-at", str(step))
            assert stored(directory) == (made if start == "store" else {}), step
            if life.was_open:
                break
            assert life.was_killed
        assert life.was_open
        assert step > 5


@needs_strace
@pytest.mark.parametrize("call", CALLS_OF_OPENING)
def test_a_kill_at_any_call_of_leveldb_leaves_a_store_that_opens(tmp_path: Path, call: str) -> None:
    made = a_store(tmp_path / "store")
    for step in range(1, 100):
        directory = tmp_path / str(step)
        shutil.copytree(tmp_path / "store", directory)
        inject = f"inject={call}:signal=SIGKILL:when={step}"
        under = ("strace", "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-o", os.devnull)
        life = live(directory, "--only-open", under=under)
        assert stored(directory) == made, step
        if life.was_open:
            break
        assert life.was_killed
    assert life.was_open
    assert step > CALLS_OF_OPENING[call], "it was not killed at each of them"


def killed_at_sync(trace: Path, number: int) -> tuple[str, ...]:
    """Return how to run a program so that it dies as it begins its Nth sync, which is not done."""
    # strace injects nothing under --seccomp-bpf.
    *options, _, _ = (word for word in traced(trace, []) if word != "--seccomp-bpf")
    inject = f"inject=fdatasync:signal=SIGKILL:when={number}"
    return (*options, "-e", inject, "-o", str(trace))


@needs_strace
def test_after_a_power_cut_with_a_scrambled_end_all_that_was_acknowledged_is_there(
    tmp_path: Path,
) -> None:
    acknowledged: dict[int, int] = {}
    directory, scrambled = tmp_path / "0", 0
    for number in range(1, CUTS + 1):
        chance = random.Random(number)
        trace = tmp_path / "trace"
        options = ["--rows", str(chance.choice([1, 3, 8]))]
        options += ["--bytes", str(chance.choice([50, 3000, 20_000, 90_000]))]
        # Few syncs: it dies while LevelDB opens.
        under = killed_at_sync(trace, chance.choice([1, 2, 3, 5, 9, 20, 40]))
        life = live(directory, *options, under=under)
        acknowledged.update(life.acknowledged)
        with trace.open() as lines:
            disk = replay(lines)
        # Scramble the files of the same moment several times, each time in another way.
        for turn in range(4):
            copy = tmp_path / f"{number}-{turn}"
            scrambled += scramble_copy(directory, disk, copy, random.Random(100 * number + turn))
            assert lost(copy, acknowledged) == [], f"cut {number}, turn {turn}"
        shutil.rmtree(directory)
        directory = copy
    assert sum(acknowledged.values()) > 5 * CUTS
    assert scrambled > CUTS


@needs_strace
def test_a_table_that_never_syncs_loses_changes(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    under = tuple(traced(trace, []))
    life = live(tmp_path / "store", "--unsynced", under=under, until=100)
    with trace.open() as lines:
        cut_copy(tmp_path / "store", replay(lines, Disk()), tmp_path / "copy")
    try:
        assert lost(tmp_path / "copy", life.acknowledged) == [0]
    except StorageCorrupt as error:
        assert re.search("damaged", error.message)  # noqa: PT017 - Found, not served.

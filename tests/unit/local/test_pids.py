import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.local import pids

FOREVER = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER

Started = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Start a program that names the folder in its command line, and wait until it runs."""
    children: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_a_process_is_found_by_its_file_until_it_ends(tmp_path: Path, started: Started) -> None:
    child = started(FOREVER)
    pids.write_pid(tmp_path, "a", child.pid)
    assert pids.live(tmp_path) == {"a": child.pid}
    child.kill()
    assert pids.await_ends([child.pid], 30) == set()
    assert pids.live(tmp_path) == {}, "it has ended, even if its parent has not waited for it"


def test_the_file_names_the_process_that_was_started_last(tmp_path: Path, started: Started) -> None:
    first, second = started(FOREVER), started(FOREVER)
    pids.write_pid(tmp_path, "a", first.pid)
    pids.write_pid(tmp_path, "a", second.pid)
    assert pids.live_pid(tmp_path, "a") == second.pid


def test_a_pid_of_a_process_outside_the_cluster_is_ignored(tmp_path: Path) -> None:
    pids.write_pid(tmp_path, "a", os.getppid())
    assert pids.live_pid(tmp_path, "a") is None


def test_without_a_pid_there_is_no_process(tmp_path: Path) -> None:
    assert pids.live_pid(tmp_path, "a") is None
    pids.pid_file(tmp_path, "a").parent.mkdir()
    pids.pid_file(tmp_path, "a").write_text("")
    assert pids.live_pid(tmp_path, "a") is None


def test_running_and_frozen_processes_end_by_the_signal(started: Started) -> None:
    awake, frozen = started(FOREVER), started(FOREVER)
    frozen.send_signal(signal.SIGSTOP)
    assert pids.end([awake.pid, frozen.pid], signal.SIGTERM, 30) == []
    assert awake.wait(30) == frozen.wait(30) == -signal.SIGTERM


def test_a_frozen_process_stops_at_once(started: Started) -> None:
    child = started(FOREVER)
    pids.freeze(child.pid, 30)
    assert pids.kernel_state(child.pid) == "T"


def test_ending_kills_a_process_that_ignores_the_signal(started: Started) -> None:
    deaf = started(DEAF)
    assert pids.end([deaf.pid], signal.SIGTERM, 0.05) == [deaf.pid]
    assert deaf.wait(30) == -signal.SIGKILL


def test_ending_an_ended_process_is_no_error(started: Started) -> None:
    child = started(FOREVER)
    child.kill()
    child.wait(30)
    assert pids.end([child.pid], signal.SIGTERM, 1) == []

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from typing_extensions import override

from broker.local.servers import ServerFailed, free_ports, process
from broker.local.servers.process import program, start_child, tied_to_us
from broker.testing.server_process import ServerProcess

SERVES = "touch ready; exec sleep 1000"


class Shell(ServerProcess):
    """A shell script as a server, ready when its file ``ready`` exists."""

    name: ClassVar[str] = "shell"

    def __init__(self, script: str, folder: Path | None = None) -> None:
        super().__init__(folder=folder)
        self.script = script

    @override
    def command(self) -> Sequence[str]:
        return [program("sh", "dash"), "-c", f"cd {self.folder}; {self.script}"]

    @override
    def answers(self) -> bool:
        return (self.folder / "ready").exists()


class Hurried(Shell):
    ready_timeout_s: ClassVar[float] = 0.05


def await_end(pid: int) -> None:
    """Wait until the process is gone, also if this test is not its parent."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 30)[0], f"process {pid} is still there"
    finally:
        os.close(process)


def test_the_end_of_the_block_ends_the_process_and_removes_its_folder() -> None:
    with Shell(SERVES) as server:
        assert server.running
    assert not Path(f"/proc/{server.pid}").exists()
    assert not server.folder.exists()


def test_a_given_folder_is_kept_and_can_be_used_again(tmp_path: Path) -> None:
    with Shell(SERVES, tmp_path) as server:
        first = server.pid
        server.kill()
        assert not server.running
        server.start()
        assert server.pid != first
    assert (tmp_path / "server.log").exists()


def test_the_error_has_the_last_output_of_a_server(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"(?s)shell ended with code 3; the end of .*boom"):
        Shell("echo boom >&2; exit 3", tmp_path).start()


def test_a_server_that_ended_by_itself_is_reported(tmp_path: Path) -> None:
    with Shell("echo I give up >&2; touch ready; exec sleep 1000", tmp_path) as server:
        server.check()
        os.kill(server.pid, signal.SIGKILL)
        await_end(server.pid)
        with pytest.raises(ServerFailed, match=r"(?s)shell ended with code -9; .*I give up"):
            server.check()


def test_a_server_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    server = Hurried("exec sleep 1000", tmp_path)
    with pytest.raises(ServerFailed, match="did not answer"), server:
        pass
    assert not server.running


def test_a_suspended_server_is_still_ended(tmp_path: Path) -> None:
    class Stubborn(Shell):
        stop_timeout_s: ClassVar[float] = 0.05

    with Stubborn(SERVES, tmp_path) as server:
        server.suspend()
    assert not server.running


def test_ports_differ_and_are_free() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports[:5]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


STARTS_AND_WAITS = """
import subprocess, sys
from broker.local.servers.process import start_child, tied_to_us
command = tied_to_us(["/bin/sh", "-c", "echo tied; exec sleep 1000"])
child = start_child(command, stderr=sys.stderr.buffer, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["sys.stdin.read()", "sys.exit(0)"], ids=["killed", "exits"])
def test_a_child_does_not_outlive_the_interpreter(then: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STARTS_AND_WAITS.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        if "stdin" in then:
            user.send_signal(signal.SIGKILL)
        await_end(pid)


def test_a_child_outlives_the_thread_that_started_it() -> None:
    started = []

    def start() -> None:
        started.append(threading.get_native_id())
        with Path(os.devnull).open("ab") as sink:
            started.append(
                start_child(
                    tied_to_us([program("cat", "coreutils")]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=sink,
                )
            )

    asker = threading.Thread(target=start)
    asker.start()
    asker.join(30)
    thread, child = started
    task = Path(f"/proc/self/task/{thread}")
    while task.exists():  # join returns a moment before the kernel's thread is gone.
        os.sched_yield()
    echo, _ = child.communicate(b"still here", timeout=30)
    assert echo == b"still here"


def test_a_port_is_not_given_out_twice_in_a_row() -> None:
    """Two servers of a cluster that do not listen yet never get the same port."""
    given = [port for _ in range(60) for port in free_ports(100)]
    assert len(set(given)) == len(given)


def test_ports_come_back_before_they_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PORTS", range(15_000, 15_040))
    monkeypatch.setattr(process, "_GIVEN_MAX", 20)
    monkeypatch.setattr(process, "_given_ports", {})
    assert len({port for _ in range(30) for port in free_ports(5)}) > 20

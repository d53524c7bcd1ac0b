"""The launcher of a local cluster: ready when it says so, its processes can be restarted, and it leaves no process."""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.client import SyncClient
from broker.local import LocalCluster, Sizes, pids
from broker.local.member import question
from broker.local.plan import ListenAddress, ProcessKind
from broker.local.servers import free_ports
from broker.local.servers.process import await_answer
from broker.testing.hbase_server import HBaseServer
from broker.testing.local_state import state_of

# Seven programs start at once; with other work on two cores that takes a minute.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.server("hbase"),
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

Launcher = subprocess.Popen[bytes]


@contextmanager
def launched(command: list[str], temporary: Path) -> Iterator[Launcher]:
    """Run a launcher until it ends by itself, or is killed here.

    Its output has no buffer here, so that waiting for a line and reading it look at the same; and it has
    a process group of its own, as in a terminal.
    """
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def up(*words: str) -> list[str]:
    return [sys.executable, "-m", "broker.cli", "cluster", "up", *words]


def line_of(stream: Any, launcher: Launcher) -> str:
    """Return the next line, or fail with the launcher's output."""
    assert select.select([stream], [], [], DEADLINE_S)[0], "the launcher says nothing"
    line: bytes = stream.readline()
    assert line, f"ended with {launcher.wait(DEADLINE_S)}: {errors_of(launcher)}"
    return line.decode()


def errors_of(launcher: Launcher) -> str:
    assert launcher.stderr is not None
    return launcher.stderr.read().decode()


def said(command: list[str]) -> str:
    """Run a command that the launcher printed; return its output."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def started_again(process: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process and run its command again, as a fault test of a user would."""
    os.kill(process["pid"], signal.SIGKILL)
    assert pids.await_ends([process["pid"]], DEADLINE_S) == set()
    with subprocess.Popen(
        process["command"],
        env={**os.environ, **process["env"]},
        cwd=process["cwd"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as again:
        try:
            yield again
        finally:
            again.kill()


def answers(folder: Path, kind: ProcessKind, name: str) -> None:
    """Wait until a process answers."""
    port = json.loads((folder / "ports.json").read_text())[name][0]
    ask = question(kind, ListenAddress(name, "127.0.0.1", port))
    failed = await_answer(ask, lambda: None, time.monotonic() + DEADLINE_S)
    assert failed is None, f"{name} {failed}; live: {pids.live(folder)}"


@pytest.mark.slow
def test_the_printed_commands_work_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """The test runs the printed commands unchanged."""
    command = ["make", "--no-print-directory", "cluster", "ARGS=--ports free"]
    with launched(command, tmp_path) as make:
        told = []
        while "Ctrl-C" not in (line := line_of(make.stdout, make)):
            told.append(line.strip())
        advised = [line.split() for line in told if "/broker " in line]
        assert [words[1] for words in advised] == ["topics", "publish", "tail"], told
        create, publish, tail = advised
        said(create)
        said(publish)
        assert said([*tail, "--limit", "1"]) == "hello\n"
        assert publish[publish.index("--url") + 1] != tail[tail.index("--url") + 1]
        (folder,) = tmp_path.glob("broker-cluster-*")
        started = pids.live(folder)
        assert len(started) == 7
        os.killpg(make.pid, signal.SIGINT)
        make.communicate(timeout=DEADLINE_S)
    assert list(tmp_path.iterdir()) == []
    assert pids.await_ends(started.values(), 0.01) == set()


@pytest.mark.slow
def test_a_killed_process_can_be_started_by_a_user_and_ends_with_the_cluster(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cluster"
    command = up("--nodes", "2", "--ports", "free", "--dir", str(folder), "--json")
    with launched(command, tmp_path) as launcher:
        told = json.loads(line_of(launcher.stdout, launcher))["processes"]
        by_name = {process["name"]: process for process in told}
        assert [(process["kind"], process["url"] is None) for process in told] == [
            ("zookeeper", True),
            ("hbase-master", True),
            ("hbase-regionserver", True),
            ("thrift", True),
            ("broker", False),
            ("broker", False),
        ]
        assert pids.live(folder) == {name: process["pid"] for name, process in by_name.items()}

        with (
            started_again(by_name["thrift-1"]) as gateway,
            started_again(by_name["broker-1"]) as node,
        ):
            answers(folder, ProcessKind.GATEWAY, "thrift-1")
            answers(folder, ProcessKind.BROKER, "broker-1")
            live = pids.live(folder)
            assert (live["thrift-1"], live["broker-1"]) == (gateway.pid, node.pid)
            os.kill(live["hbase-regionserver-1"], signal.SIGSTOP)
            os.kill(live["broker-2"], signal.SIGSTOP)

            launcher.terminate()
            assert launcher.wait(DEADLINE_S) == 0, errors_of(launcher)
            gateway.wait(DEADLINE_S)
            node.wait(DEADLINE_S)
        assert pids.live(folder) == {}
        assert (folder / "logs" / "thrift-1.log").exists(), "a folder that was named is kept"


@pytest.mark.slow
def test_interrupting_the_start_leaves_no_process(tmp_path: Path) -> None:
    with launched(up("--nodes", "0", "--ports", "free"), tmp_path) as launcher:
        assert "zookeeper-1 is ready" in line_of(launcher.stderr, launcher)
        (folder,) = tmp_path.iterdir()
        started = pids.live(folder)
        assert len(started) == 4
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(DEADLINE_S) == 0
    assert list(tmp_path.iterdir()) == []
    assert pids.await_ends(started.values(), 0.01) == set()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", *free_ports(1)))
        taken.listen()
        port = taken.getsockname()[1]
        with launched(up("--nodes", "1", "--ports", str(port)), tmp_path) as launcher:
            assert launcher.wait(DEADLINE_S) == 1
            assert f"port {port} is in use" in errors_of(launcher)


def test_one_folder_has_one_cluster(tmp_path: Path) -> None:
    command = up("--nodes", "0", "--ports", "free", "--dir", str(tmp_path))
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with launched(command, tmp_path) as second:
            assert second.wait(DEADLINE_S) == 1
            assert f"a cluster runs in {tmp_path}" in errors_of(second)


def test_a_process_that_is_left_over_is_named(tmp_path: Path) -> None:
    command = up("--nodes", "0", "--ports", "free", "--dir", str(tmp_path))
    with subprocess.Popen(["tail", "-f", "/dev/null", str(tmp_path / "lock")]) as left:
        try:
            pids.write_pid(tmp_path, "broker-1", left.pid)
            with launched(command, tmp_path) as second:
                assert second.wait(DEADLINE_S) == 1
                assert f"'broker-1': {left.pid}" in errors_of(second)
            assert left.poll() is None, "the launcher does not end a process that it did not start"
        finally:
            left.kill()


@pytest.mark.nightly
def test_the_same_folder_goes_on_with_its_data(tmp_path: Path) -> None:
    for payload in (b"1", b"2"):
        with (
            LocalCluster(Sizes(nodes=1), folder=tmp_path / "cluster") as cluster,
            SyncClient(str(cluster.nodes[0].url)) as client,
        ):
            client.create_topic("demo/t", if_exists="keep")
            client.publish("demo/t", [payload])
            read = [message.payload for message in client.poll("demo/t")]
    assert read == [b"1", b"2"]


@pytest.mark.nightly
def test_nodes_of_a_test_are_killed_frozen_and_started_again(hbase_server: HBaseServer) -> None:
    topic = "demo/t"
    with LocalCluster(
        Sizes(nodes=2),
        gateway=hbase_server.gateway,
        settings={"cluster.session_timeout_ms": 1500},
        own_settings={1: {"cluster.instance_id": 7}},
    ) as cluster:
        first, second = cluster.nodes
        with SyncClient(str(first.url)) as client:
            client.create_topic(topic)
            client.publish(topic, [b"a"])
            led = client.leader(topic)
            assert led.node in (0, 7)
        # The state of nodes, leases and logs in the error of a wait that took too long.
        assert f"leads {topic} in epoch {led.epoch};" in state_of(cluster)
        assert state_of(cluster).count("ZooKeeper connected 0x") == 2
        first.kill()
        assert not first.running
        assert first.exit_code == -signal.SIGKILL
        with SyncClient(str(second.url)) as client:
            client.publish(topic, [b"b"])
            assert [message.payload for message in client.poll(topic)] == [b"a", b"b"]
        first.start()
        second.pause()
        assert "frozen" in state_of(cluster)
        second.resume()
        assert second.stop() == 0
        assert "ended with 0" in state_of(cluster)
        with SyncClient(str(first.url)) as client:
            assert [message.payload for message in client.poll(topic)] == [b"a", b"b"]
        folder = first.folder
    assert not folder.exists()

"""A cluster ends completely, even if a node of it is started meanwhile."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.cli import app
from broker.local import LocalCluster, Sizes, cluster, launcher, pids
from broker.local.member import spec_file
from broker.local.servers import ServerFailed, ServerMissing
from broker.testing import broker_process

DEADLINE_S = 60
DEAF = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))
os.write(1, b'up\\n')
while True:
    signal.pause()
"""
RUNS = "import signal; print('runs', flush=True); signal.pause()"


def late(folder: Path) -> subprocess.Popen[str]:
    """Start a node with the command that a cluster prints for it, as a user does."""
    spec = spec_file(folder, "broker-2")
    spec.parent.mkdir(exist_ok=True)
    spec.write_text(json.dumps({"argv": [sys.executable, "-c", RUNS, str(folder)], "env": {}}))
    command = [sys.executable, "-m", "broker.local", "run", "broker-2"]
    return subprocess.Popen(
        [*command, "--dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_node_started_while_a_cluster_ends_does_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_servers(*_: object, **__: object) -> None:
        raise ServerMissing("HBase is not fetched")

    monkeypatch.setattr("broker.local.cluster.local_layout", no_servers)
    cluster = LocalCluster(Sizes(nodes=2), folder=tmp_path)
    with pytest.raises(ServerMissing):
        cluster.start()
    command = [sys.executable, "-c", DEAF, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "up\n"
        pids.write_pid(tmp_path, "broker-1", node.pid)
        ending = threading.Thread(target=cluster.close)
        ending.start()
        assert node.stdout.readline() == "asked\n"
        # The cluster has already listed the nodes that it ends; this node is not among them.
        with late(tmp_path) as second:
            try:
                _, errors = second.communicate(timeout=DEADLINE_S)
            finally:
                second.kill()
            assert second.returncode == 1
            assert "has ended: broker-2 is not started" in errors
        node.send_signal(signal.SIGKILL)
        ending.join(DEADLINE_S)
    assert pids.live(tmp_path) == {}


@pytest.mark.parametrize("has_ended_before", [False, True])
def test_a_node_may_be_started_while_its_cluster_runs(
    tmp_path: Path, has_ended_before: bool
) -> None:
    if has_ended_before:
        pids.begin_end(tmp_path)
    pids.begin(tmp_path)
    with late(tmp_path) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "runs\n"
        assert pids.live(tmp_path) == {"broker-2": node.pid}
        node.kill()


def test_a_cluster_that_does_not_start_unlocks_its_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEAF, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as left:
        try:
            assert left.stdout is not None
            assert left.stdout.readline() == b"up\n"
            pids.write_pid(tmp_path, "broker-1", left.pid)
            cluster = LocalCluster(Sizes(), folder=tmp_path)
            with pytest.raises(ServerFailed, match="run already"), cluster:
                pass
        finally:
            left.kill()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_making_tables_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "INIT_S", 0.001)
    with pytest.raises(ServerFailed, match="timed out"):
        cluster.init_storage(tmp_path / "broker.toml")


def broker_of(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> broker_process.BrokerProcess:
    """Return a broker that runs ``code`` instead."""
    command = ("-c", f"import signal, sys; {code}")
    monkeypatch.setattr(broker_process, "command_line", lambda _: command)
    return broker_process.BrokerProcess(folder / "data")


def test_a_broker_that_hangs_during_its_start_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of("signal.pause()", tmp_path, monkeypatch)
    monkeypatch.setattr(broker_process, "READY_S", 0.05)
    with pytest.raises(ServerFailed, match=r"not ready in 0\.05 s"):
        broker.start()
    assert not broker.running


@pytest.mark.parametrize(
    "code",
    [
        "sys.exit('why')",
        "print('why', file=sys.stderr, flush=True); print('wrong', flush=True); signal.pause()",
    ],
    ids=["ends", "says something else"],
)
def test_a_broker_that_does_not_start_tells_why(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(code, tmp_path, monkeypatch)
    with pytest.raises(ServerFailed, match="did not start") as failed:
        broker.start()
    assert not broker.running
    assert str(failed.value).endswith(f"the end of {broker.log_path}:\nwhy")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the handlers of signals back, which the launcher replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--ports", "70000"], 1, "the cluster did not start: there is no port 70000"),
        (["--ports", "65534"], 1, "there is no port 65536; choose others with --ports"),
        (["--ports", "http"], 2, "'http' is no port, and not 'free'"),
        (["--set", "server.prot=1"], 2, "there is no key 'server.prot'"),
        (["--set", "server.drain_s=soon"], 2, "the value of server.drain_s is no JSON: 'soon'"),
        (["--dir", "/dev/null/x"], 1, "the cluster did not start: [Errno 20] Not a directory"),
        ([], 1, "ports.json is damaged; give the cluster another folder"),
    ],
)
def test_a_start_that_can_not_be_is_told_in_one_line(
    words: list[str], code: int, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    is_damaged = not words
    if is_damaged:
        (tmp_path / "ports.json").write_text("[1")
    with pytest.raises(SystemExit) as ended:
        app.run(["cluster", "up", "--dir", str(tmp_path), "--ports", "free", *words])
    told = capfd.readouterr().err
    assert (ended.value.code, says in told) == (code, True), told


@pytest.mark.usefixtures("handlers")
def test_under_nohup_a_cluster_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert launcher.launch(Sizes(), Path("/dev/null/x"), {}, as_json=False) == 1
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_cluster_runs_on_and_ends_in_order_after_the_reader_of_its_output_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Started:
        urls = ("http://127.0.0.1:8081",)
        ended = False

        def __enter__(self) -> None:
            """Start."""

        def __exit__(self, *_: object) -> None:
            self.ended = True

    def interrupted() -> None:
        raise KeyboardInterrupt

    read, write = os.pipe()
    os.close(read)
    cluster: Any = Started()
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        monkeypatch.setattr(sys, "stderr", gone)
        monkeypatch.setattr(signal, "pause", interrupted)
        assert launcher.up(cluster, as_json=False) == 0
    assert cluster.ended

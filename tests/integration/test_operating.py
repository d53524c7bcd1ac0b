"""A served node and the commands, as an operator's shell, supervisor and disk treat them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from broker.client import SyncClient
from broker.local.addresses import free_ports
from broker.testing.broker_process import BrokerProcess

BROKER = (sys.executable, "-m", "broker.cli")
STOP_S = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    """Return once a condition on another process is true."""
    ends_s = time.monotonic() + STOP_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < ends_s
        pause.wait(0.02)


def is_logged(broker: BrokerProcess, event: str) -> bool:
    return f'"event": "{event}"' in broker.log()


def test_sighup_reloads_the_log_level_and_a_lost_directory_stops_the_node(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[logs]\nlog_level = 'info'\n")
    with BrokerProcess(tmp_path / "data", ["--config", str(file)]) as broker:
        file.write_text("[logs]\nno_such_key = 1\n")
        os.kill(broker.pid, signal.SIGHUP)
        until(lambda: is_logged(broker, "configuration not reloaded: the old one stays"))
        assert "no_such_key" in broker.log()
        file.write_text("[logs]\nlog_level = 'warning'\n[server]\ndrain_s = 1\n")
        os.kill(broker.pid, signal.SIGHUP)
        until(lambda: is_logged(broker, "changed keys need a restart"))
        assert '"keys": ["server.drain_s"]' in broker.log()
        os.kill(broker.pid, signal.SIGUSR1)
        until(lambda: is_logged(broker, "this signal has no effect on a node"))
        with SyncClient(broker.url) as client:
            client.create_topic("t/kept")
            shutil.rmtree(tmp_path / "data")
        assert broker.wait(STOP_S) == 1
        reason = f"broker: stopped: the data directory {tmp_path / 'data'} is lost"
        assert reason in broker.log()
        assert "Traceback" not in broker.log()
        assert not (tmp_path / "data").exists()
        assert not is_logged(broker, "node draining"), "the log level is warning"


def test_a_second_interrupt_ends_a_node_that_waits_for_its_requests(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)) as slow:
        slow.sendall(b"POST /v1/namespaces/a/topics/b/publish HTTP/1.1\r\nHost: x\r\n")
        slow.sendall(b"Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nbegun")
        os.kill(broker.pid, signal.SIGINT)
        os.kill(broker.pid, signal.SIGINT)  # A parent process may pass the same Ctrl-C on.
        until(lambda: is_logged(broker, "node draining"))
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(0.6)
        os.kill(broker.pid, signal.SIGINT)
        assert broker.wait(STOP_S) == 130


def test_a_node_whose_disk_hangs_at_the_start_ends_at_sigterm(tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run([*BROKER, "storage", "init", data], check=True)
    (data / "CLEAN").unlink()
    os.mkfifo(data / "db" / "000009.log")  # To open it is to wait for a writer.
    command = [*BROKER, "serve", "--port", "0", "--data-dir", str(data)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as node:
        assert node.stderr is not None
        assert b"opening store" in node.stderr.readline()
        node.terminate()
        try:
            assert node.wait(STOP_S) == 0
        finally:
            node.kill()


@contextmanager
def without_streams(words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with standard input, output and error closed."""
    with subprocess.Popen(["/bin/sh", "-c", f"exec {words} <&- >&- 2>&-"]) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_node_serves_without_standard_streams(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data = tmp_path / "data"
    with without_streams(f"{' '.join(BROKER)} serve --port {port} --data-dir {data}") as node:
        until(lambda: answers(port))
        with SyncClient(f"http://127.0.0.1:{port}") as client:
            client.create_topic("t/kept")
            client.publish("t/kept", b"message")
        node.terminate()
        assert node.wait(STOP_S) == 0
    verified = subprocess.run(
        [*BROKER, "storage", "verify", data], capture_output=True, check=False
    )
    assert verified.returncode == 0, verified.stdout
    assert b"messages      1\n" in verified.stdout


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def test_a_command_without_standard_streams_does_its_work() -> None:
    with without_streams(f"{' '.join(BROKER)} config") as config:
        assert config.wait(STOP_S) == 0


@pytest.mark.parametrize("words", [("--help",), ("config",), ("config", "--json")])
def test_a_full_output_is_not_taken_for_the_brokers_disk(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*BROKER, *words], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    told = done.stderr.decode()
    message = json.loads(told)["message"] if "--json" in words else told
    assert "the output of this command can't be written: No space left on device" in message
    assert told.count("\n") == 1, "Python adds nothing at the exit"


@pytest.mark.parametrize("standard_error", ["full", "without a reader"])
def test_the_exit_code_is_that_of_the_work_also_if_no_message_can_be_written(
    standard_error: str,
) -> None:
    with Path("/dev/full").open("wb") as full, socket.create_server(("127.0.0.1", 0)) as server:
        reader, writer = os.pipe()
        os.close(reader)
        errors = full.fileno() if standard_error == "full" else writer
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [*BROKER, "publish", "a/b", "m", "--url", url]
        with subprocess.Popen(command, stderr=errors) as publish:
            with server.accept()[0] as connection:
                connection.recv(65_536)  # It is closed without an answer: the outcome is unknown.
            assert publish.wait(STOP_S) == 3
        os.close(writer)


@pytest.mark.parametrize("words", ["nemeses", "nemeses --nonsense"])
@pytest.mark.parametrize("full", [1, 2])
def test_output_that_can_not_be_written_is_no_violation(words: str, full: int) -> None:
    command = f"{sys.executable} -m chaos {words} {full}>/dev/full"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == (0 if full == 2 and words == "nemeses" else 2)
    assert b"Traceback" not in done.stderr


def test_json_makes_the_log_and_the_line_of_a_node_json(tmp_path: Path) -> None:
    command = [*BROKER, "serve", "--json", "--port", "0", "--data-dir", str(tmp_path / "data")]
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as node:
        os.close(theirs)
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["ready"].startswith("http://127.0.0.1:")
        assert json.loads(os.read(ours, 65_536).splitlines()[0])["event"] == "opening store"
        node.terminate()
        assert node.wait(STOP_S) == 0
    os.close(ours)

"""One process of a local cluster: start it, ask it, kill it, freeze it, start it again.

A member starts its process with ``python -m broker.local run NAME --dir DIR``. This command writes its pid and
becomes the program. A person or another program can run the same command. A member acts on the process in the pid
file, so it makes no difference how that process was started.

A process that the member started itself dies with this interpreter (see ``broker.local.servers.process``). A thread
waits for its end, so that it does not stay a zombie, which would look alive to others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NoReturn

import broker
from broker.local import pids
from broker.local.plan import ListenAddress, ProcessKind, Program
from broker.local.servers import hbase, zookeeper
from broker.local.servers.process import (
    ASK_TIMEOUT_S,
    ServerFailed,
    await_answer,
    start_child,
    tied_to_us,
)

READY_S = 60.0
STOP_S = 15.0
LOG_TAIL_LINES = 30
_CODE = str(Path(broker.__file__).resolve().parents[1])


def run(folder: Path, name: str) -> NoReturn:
    """Write the pid and become the process ``name``; exit if the cluster is ending or has ended.

    Raises:
        FileNotFoundError: There is no such process.
    """
    spec = json.loads(spec_file(folder, name).read_text())
    pids.write_pid(folder, name, os.getpid())
    if pids.has_ended(folder):
        sys.exit(f"the cluster in {folder} has ended: {name} is not started")
    os.environ.update(spec["env"])
    os.execvp(spec["argv"][0], spec["argv"])  # noqa: S606 - The cluster's own programs.


def spec_file(folder: Path, name: str) -> Path:
    """Return the path of the file with the command and environment of ``name``."""
    return folder / "processes" / f"{name}.json"


class Member:
    """A process of the cluster in ``folder``; ``ready`` asks whether it serves, and OSError means *not yet*."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str],
    ) -> None:
        """Write the files with which the process can be started."""
        self.name = program.name
        self.kind: ProcessKind = program.kind
        self.place = program.place
        self.url = program.url
        self.log_path = folder / "logs" / f"{self.name}.log"
        self.environment = dict(environment)
        self.folder = folder
        self._ready = ready
        self._child: subprocess.Popen[bytes] | None = None
        self._program = program
        self._write()

    def reconfigure(self, environment: Mapping[str, str]) -> None:
        """Use other environment variables from the next start on."""
        self.environment = dict(environment)
        self._write()

    def _write(self) -> None:
        program = self._program
        spec = json.dumps({"argv": program.argv, "env": self.environment})
        for file, text in {**program.files, str(spec_file(self.folder, self.name)): spec}.items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(text)
        self.log_path.parent.mkdir(exist_ok=True)

    @property
    def command(self) -> list[str]:
        """The command that starts the process in the foreground."""
        run_it = ("-m", "broker.local", "run", self.name, "--dir", str(self.folder))
        return [sys.executable, *run_it]

    @property
    def outside(self) -> dict[str, str]:
        """The environment variables that ``command`` needs in addition to those of its caller.

        The process itself may have another ``PYTHONPATH``: that of its ``environment``, which ``run`` sets.
        """
        return {**self.environment, "PYTHONPATH": _CODE}

    @property
    def pid(self) -> int:
        """The pid of the process. Raises ServerFailed if it does not live."""
        found = pids.live_pid(self.folder, self.name)
        if found is None:
            raise self.failure("does not run")
        return found

    @property
    def running(self) -> bool:
        """Return whether the process lives, also if it is frozen."""
        return pids.live_pid(self.folder, self.name) is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process that this member started last; None while it lives."""
        return None if self._child is None else self._child.poll()

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.running, f"{self.name} is running already"
        environment = {**os.environ, **self.outside}
        with self.log_path.open("ab") as log:
            child = start_child(tied_to_us(self.command), stderr=log, environment=environment)
        # The child writes the same, but later; a caller that asks before must find the pid, too.
        pids.write_pid(self.folder, self.name, child.pid)
        self._child = child
        threading.Thread(target=child.wait, name=f"waits for {self.name}", daemon=True).start()

    def await_ready(self, timeout_s: float = READY_S) -> None:
        """Return when the process answers. Raises ServerFailed with the end of its log."""
        failed = await_answer(self._ready, self._ended, time.monotonic() + timeout_s)
        if failed is not None:
            raise self.failure(failed)

    def start(self) -> None:
        """Start the process and return when it answers. Raises ServerFailed."""
        self.launch()
        self.await_ready()

    def stop_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the process to end, and return at once."""
        pids.send(self.pid, number)

    def stop(self, grace_s: float = STOP_S) -> int | None:
        """Ask the process to end, kill it after ``grace_s``, and return ``exit_code``."""
        self._end(signal.SIGTERM, grace_s)
        return self.exit_code

    def kill(self) -> None:
        """Kill the process, as in a crash. Idempotent."""
        self._end(signal.SIGKILL, STOP_S)

    def pause(self) -> None:
        """Freeze the process, and return when it is frozen: its connections stay, but it does not answer."""
        pids.freeze(self.pid, STOP_S)

    def resume(self) -> None:
        """Resume a frozen process."""
        pids.send(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return the output of the process, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def failure(self, what: str) -> ServerFailed:
        """Return an error with the end of the log."""
        tail = "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:])
        return ServerFailed(f"{self.name} {what}; the end of {self.log_path}:\n{tail}")

    def _ended(self) -> str | None:
        code = self.exit_code
        return None if code is None else f"ended with code {code}"

    def _end(self, number: signal.Signals, grace_s: float) -> None:
        pid = pids.live_pid(self.folder, self.name)
        if pid is not None:
            pids.end([pid], number, grace_s)
        if self._child is not None and self._child.pid == pid:
            self._child.wait(STOP_S)


# --- Readiness -------------------------------------------------------------------------------------
#
# An open port is not enough. A gateway's port opens before HBase's master is ready, so a gateway gets a call that goes
# through to the master. This call also covers the master and the region servers; for these themselves a connection to
# the port is enough.


def question(kind: ProcessKind, place: ListenAddress) -> Callable[[], bool]:
    """Return the question for a process; an OSError that it raises means *not yet*."""
    ask = {
        ProcessKind.ZOOKEEPER: zookeeper.serves,
        ProcessKind.MASTER: _listens,
        ProcessKind.REGION_SERVER: _listens,
        ProcessKind.GATEWAY: hbase.gateway_answers,
        ProcessKind.BROKER: _is_ready,
    }[kind]
    return lambda: ask(place.host, place.port)


def _listens(host: str, port: int) -> bool:
    socket.create_connection((host, port), timeout=ASK_TIMEOUT_S).close()
    return True


def _is_ready(host: str, port: int) -> bool:
    connection = HTTPConnection(host, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except HTTPException:
        return False
    finally:
        connection.close()

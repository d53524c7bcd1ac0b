"""One process of a local cluster: started, asked, killed, frozen, started again.

A process is started through ``python -m broker.local run NAME --dir DIR``, which writes its id
and becomes the program: the same command that anyone else may start it with. What a member does, it does
to the process that the file names, so it makes no difference who started that. Those that it started
itself die with this interpreter (see ``broker.local.servers.process``) and are waited for as soon as
they end, so that an ended one looks ended to everyone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import broker
from broker.local import pids
from broker.local.plan import ProcessKind, Program
from broker.local.readiness import told_by
from broker.local.servers.process import ServerFailed, await_answer, start_child, tied_to_us

READY_S = 60.0
STOP_S = 15.0
LOG_TAIL_LINES = 30
_CODE = str(Path(broker.__file__).resolve().parents[1])


def run(folder: Path, name: str) -> NoReturn:
    """Become the process ``name``, after writing its id; exit if the cluster ends just now, or has.

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
    """Return where it is written what ``name`` runs."""
    return folder / "processes" / f"{name}.json"


class Member:
    """A process of the cluster in ``folder``; ``ready`` asks it, and OSError counts as *not yet*."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str],
    ) -> None:
        """Write what is needed to start it, by whomever."""
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
        """Run under other variables from the next start on."""
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
        """What starts it in the foreground."""
        run_it = ("-m", "broker.local", "run", self.name, "--dir", str(self.folder))
        return [sys.executable, *run_it]

    @property
    def outside(self) -> dict[str, str]:
        """What must be set beyond the environment of whoever runs ``command``."""
        return {"PYTHONPATH": _CODE, **self.environment}

    @property
    def pid(self) -> int:
        """The id of the process. Raises ServerFailed if it does not live."""
        found = pids.live_pid(self.folder, self.name)
        if found is None:
            raise self.failure("does not run")
        return found

    @property
    def running(self) -> bool:
        """Whether the process lives, also if it is frozen."""
        return pids.live_pid(self.folder, self.name) is not None

    @property
    def exit_code(self) -> int | None:
        """How the process that was started here last has ended; None while it lives."""
        return None if self._child is None else self._child.poll()

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.running, f"{self.name} is running already"
        environment = {**os.environ, **self.outside}
        with self.log_path.open("ab") as log:
            child = start_child(tied_to_us(self.command), stderr=log, environment=environment)
        # It writes the same itself; but whoever asks now shall find it.
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
        """End the process in good order, by a kill if that takes too long; return ``exit_code``."""
        self._end(signal.SIGTERM, grace_s)
        return self.exit_code

    def kill(self) -> None:
        """End the process as a crash would. Idempotent."""
        self._end(signal.SIGKILL, STOP_S)

    def pause(self) -> None:
        """Freeze the process, and return once it stands: its connections stay, nothing answers."""
        pids.freeze(self.pid, STOP_S)

    def resume(self) -> None:
        """Let a frozen process go on."""
        pids.send(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what the process wrote, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def state(self) -> str:
        """Say how it is, and if it is a node that answers, what it holds."""
        if self._child is not None and self._child.poll() is not None and not self.running:
            return f"{self.name}: ended with {self._child.returncode}"
        pid = pids.live_pid(self.folder, self.name)
        told = f"{self.name}: {_condition(pid)}"
        if self.kind is ProcessKind.BROKER and pid is not None and not _is_frozen(pid):
            return f"{told}, {told_by(self.place)}"
        return told

    def failure(self, what: str) -> ServerFailed:
        """Return an error that carries the end of the log."""
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


def _condition(pid: int | None) -> str:
    if pid is None:
        return "does not run"
    return f"process {pid}, {'frozen' if _is_frozen(pid) else 'running'}"


def _is_frozen(pid: int) -> bool:
    return pids.kernel_state(pid) == "T"

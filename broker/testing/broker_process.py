"""A standalone broker as a separate process: start it, kill it, start it again on the same data."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from broker.local.plan import command_line
from broker.local.servers.process import ServerFailed, free_ports, start_child, tied_to_us
from broker.testing.server_process import Child

READY = b"broker ready at "
READY_S = 60.0
LOG_TAIL_LINES = 30
STOP_S = 30.0


class BrokerProcess(Child):
    """``broker serve`` on a free port of loopback, the same for each start.

    It is a context manager that leaves no process behind.

    Args:
        data_dir: its data directory; kept.
        flags: further flags of ``broker serve``.
        environment: environment variables in addition to those of this process.
        mutant: the guard that it lacks, see broker/testing/mutants.py; "" for none.
        own_settings: ignore the settings of this process's environment.
    """

    name = "the broker"

    def __init__(
        self,
        data_dir: Path,
        flags: Sequence[str] = (),
        *,
        environment: dict[str, str] | None = None,
        mutant: str = "",
        own_settings: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        where = ("--port", str(self.port), "--data-dir", str(data_dir))
        self._command = [sys.executable, *command_line(mutant), "serve", *where, *flags]
        around = {
            name: value
            for name, value in os.environ.items()
            if not (own_settings and name.startswith("BROKER_"))
        }
        self._environment = {**around, **(environment or {})}

    @override
    def start(self) -> None:
        """Start the broker and wait until it serves. Raises ServerFailed with the end of its log if it does not."""
        assert self._process is None, "runs already"
        with self.log_path.open("ab") as log:
            self._process = start_child(
                tied_to_us(self._command),
                stdout=subprocess.PIPE,
                stderr=log,
                environment=self._environment,
            )
        assert self._process.stdout is not None
        said = select.poll()
        said.register(self._process.stdout, select.POLLIN)
        has_said = bool(said.poll(READY_S * 1000))
        line = self._process.stdout.readline() if has_said else b""
        if not line.startswith(READY):
            self.kill()
            why = line.decode() if has_said else f"it was not ready in {READY_S:g} s\n"
            tail = "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:])
            raise ServerFailed(
                f"the broker did not start: {why}the end of {self.log_path}:\n{tail}"
            )

    def log(self) -> str:
        """Return the broker's log, over all its starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    @override
    def kill(self) -> None:
        """Kill the broker and its child processes at once."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    @override
    def close(self) -> None:
        self.kill()

    def wait(self, seconds: float = STOP_S) -> int:
        """Wait until the broker has ended, and return its exit code. Raises subprocess.TimeoutExpired."""
        assert self._process is not None, "not running"
        return self._process.wait(seconds)

    def stop(self) -> int:
        """Ask the broker to stop, and return its exit code. Raises subprocess.TimeoutExpired."""
        os.kill(self.pid, signal.SIGTERM)
        code = self.wait()
        self.kill()
        return code

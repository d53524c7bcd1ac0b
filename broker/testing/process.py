"""A broker as a process of its own: started, killed, started again on the same data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.testing.servers.process import free_ports

READY = "broker ready at "
STOP_S = 30.0


class BrokerProcess:
    """``broker serve`` on a fixed free port of loopback; a context manager that leaves nothing behind.

    Args:
        data_dir: its data; kept.
        flags: further flags of ``broker serve``.
        prefix: a command in front, such as strace with its arguments.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        data_dir: Path,
        flags: Sequence[str] = (),
        *,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *prefix,
            sys.executable,
            *("-m", "broker.cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir)),
            *flags,
        ]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of what was started (of ``prefix``, if there is one)."""
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it serves. Raises RuntimeError with its log if it does not."""
        assert self._process is None, "runs already"
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            self.kill()
            raise RuntimeError(f"the broker did not start: {line}{self.log()}")

    def log(self) -> str:
        """Return what it logged, over all its starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def kill(self) -> None:
        """Kill it and all that it started, at once."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def stop(self) -> int:
        """Ask it to stop, and return its exit code. Raises subprocess.TimeoutExpired."""
        assert self._process is not None, "not running"
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S)
        self.kill()
        return code

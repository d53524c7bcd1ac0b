"""One server of the tests as a child process: its folder, its readiness, its log, and an end that leaves nothing behind.

``close``, also at the end of a ``with`` block, ends the child and removes its folder. ``start`` never sleeps for a fixed
time. It calls ``answers`` until this returns True, the child ends, or the deadline passes. An error then has the end of
the server's log.
"""

from __future__ import annotations

import abc
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from typing_extensions import override

from broker.local.servers.process import ServerFailed, await_answer, start_child, tied_to_us

LOG_TAIL_LINES: Final = 30


class Child(abc.ABC):
    """A child process as a context manager, which starts it and ends it."""

    name: ClassVar[str]
    _process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Start the child, and return when it can be used."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill the child, as in a crash. Idempotent."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the child, and leave nothing behind. Idempotent."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The pid of the last process, even if it has ended."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid


class ServerProcess(Child):
    """A server process that can be started, asked, stopped, and started again.

    A subclass gives the command and the question. ``start`` after ``stop`` or ``kill`` starts the same server again
    with the same folder and ports. A crash is simulated in this way.

    Args:
        folder: The folder of data, configuration and log; it is kept. Without it, a temporary folder, which
            ``close`` removes. If the start failed, it is kept for its log.
        cpu: The one CPU on which the server may run.
        environment: The whole environment of the process, instead of ours.
    """

    ready_timeout_s: ClassVar[float] = 60.0
    stop_timeout_s: ClassVar[float] = 10.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        *,
        folder: Path | None = None,
        cpu: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._keep = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"broker-{self.name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self.folder / "server.log"
        self.start_s = 0.0
        self._cpu = cpu
        self._environment = environment

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Write the configuration, if there is one, and return the command line."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers a real request; an OSError means *not yet*."""

    @override
    def start(self) -> None:
        """Start the process and return when it answers.

        Raises:
            ServerMissing: A program that it needs is not on this machine.
            ServerFailed: It ended or did not answer; the message has the end of its log.
        """
        assert not self.running, f"{self.name} is running already"
        began = time.monotonic()
        command = tied_to_us(self.command(), cpu=self._cpu)
        with self.log_path.open("ab") as log:
            self._process = start_child(command, stderr=log, environment=self._environment)
        self._await_answer(self._process, began + self.ready_timeout_s)
        self.start_s = time.monotonic() - began

    def check(self) -> None:
        """Check that the process has not ended by itself.

        Raises:
            ServerFailed: It has ended by itself; the message has the end of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            raise self._failure(f"ended with code {self._process.returncode}")

    def stop(self) -> None:
        """Ask the process to end; kill it if that takes too long. Idempotent."""
        self._end(self.stop_signal)

    @override
    def kill(self) -> None:
        """Kill the process, as in a crash. Idempotent."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Freeze the process: its connections stay, but it does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen process."""
        self._signal(signal.SIGCONT)

    @override
    def close(self) -> None:
        """Stop the process, and remove the folder if it is temporary. Idempotent."""
        self.stop()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} was never started"
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_answer(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        def ended() -> str | None:
            return None if process.poll() is None else f"ended with code {process.returncode}"

        failed = await_answer(self.answers, ended, deadline)
        if failed is not None:
            raise self._failure(failed)

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}; the end of {self.log_path}:\n{self.log_tail()}")

"""Child processes that leave nothing behind: their ports, their start, and the wait for their first answer.

A child that outlives its test would answer the next test on the same port, without an error. So if this interpreter
exits, or is killed with SIGKILL, the kernel kills the child. ``setpriv --pdeathsig`` requests this before the child's
program starts. The kernel kills the child at the end of the *thread* that started it. So one thread, which lives as long
as the interpreter, starts all children.

Ctrl-C in a terminal does not reach a child, since it has its own session. So a server still runs while the tests that
use it clean up.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import IO

from broker.local.servers.cache_folder import ServerMissing

HOST = "127.0.0.1"

# The most time for one question: a server that has just opened its port may never answer the first one.
ASK_TIMEOUT_S = 1.0

_POLL_S = 0.02
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")
# These ports are below Linux's range for outgoing connections. So no outgoing connection takes a port after it was
# found free and before the server binds it.
_PORTS = range(15_000, 32_000)
_DRAW = random.SystemRandom()
_GIVEN_MAX = len(_PORTS) // 2
_given_ports: dict[int, None] = {}
"""Ports that this process has given out, oldest first. Their servers may not listen yet, or may be restarting."""


class ServerFailed(Exception):
    """A server ended during its start, or did not answer in time."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different free TCP ports of loopback.

    A port comes again only after half of all ports were given out.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = _DRAW.choice(_PORTS)
            if port in _given_ports:
                continue
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((HOST, port))
                ports.append(port)
                _given_ports[port] = None
            while len(_given_ports) > _GIVEN_MAX:
                del _given_ports[next(iter(_given_ports))]
        return tuple(ports)


def program(name: str, package: str) -> str:
    """Return the full path of an installed program.

    Raises:
        ServerMissing: It is not installed; the message names the Debian package.
    """
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(f"{name} is not installed: apt-get install {package}")
    return found


def tied_to_us(command: Sequence[str], *, cpu: int | None = None) -> list[str]:
    """Return a command line that runs ``command`` so that it dies with this process; on one CPU if ``cpu``."""
    pinned = [program("taskset", "util-linux"), "-c", str(cpu)] if cpu is not None else []
    return [program("setpriv", "util-linux"), "--pdeathsig", "KILL", *pinned, *command]


def start_child(
    command: Sequence[str],
    *,
    stderr: IO[bytes],
    stdout: IO[bytes] | int | None = None,
    stdin: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child from the starter thread, which ends with this interpreter; then the kernel kills the child."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stderr if stdout is None else stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )

    return _STARTER.submit(start).result()


def await_answer(
    answers: Callable[[], bool], ended: Callable[[], str | None], deadline: float
) -> str | None:
    """Ask until the answer is yes.

    Args:
        answers: The question; an OSError means *not yet*.
        ended: Returns how the process has ended; None while it lives.
        deadline: The time of ``time.monotonic`` at which to give up.

    Returns:
        None for yes, else the reason of the failure.
    """
    began = time.monotonic()
    last_error = "it gave a wrong answer"
    pause = threading.Event()
    while True:
        answered = False
        try:
            answered = answers()
        except OSError as error:
            last_error = repr(error)
        # Check the process after its answer: if it has died, another server may have answered on its port.
        end = ended()
        if end is not None:
            return end
        if answered:
            return None
        if time.monotonic() > deadline:
            return f"did not answer in {deadline - began:.0f} s ({last_error})"
        pause.wait(_POLL_S)

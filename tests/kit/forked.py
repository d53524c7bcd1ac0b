"""Run the command ``broker`` and Python programs in forks of one process, which imports the packages only once.

A new Python process spends most of the time of a short command on imports. ``Forked`` writes two commands into a
folder: ``broker``, and ``program`` for ``python PROGRAM``. Each sends its arguments, folder, environment and open files
to the process, which forks a child for them. The command ends with the child's exit code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from broker.local.servers.process import tied_to_us

IMPORTED = (
    "broker.cli.app",
    "broker.transfer.parquet_file",
    "broker.client",
    "broker.node.node",
    "broker.sql",
    "broker.streams",
)
"""The packages that take the longest to import."""
REQUEST_BYTES = 1 << 20
COMMAND = """\
#!{python} -ISE
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
asked = [{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(connection, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
sys.exit(int(connection.recv(16) or b"1"))
"""


class Forked:
    """The process, and the folder with the two commands. It is a context manager."""

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="forked-")
        self.folder = Path(self._temporary.name)
        address = self.folder / "socket"
        for name in ("broker", "program"):
            command = self.folder / name
            command.write_text(
                COMMAND.format(python=sys.executable, address=str(address), name=name)
            )
            command.chmod(0o755)
        self._process = subprocess.Popen(
            tied_to_us([sys.executable, "-m", __name__, str(address)]),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._temporary.cleanup()


def serve(address: str) -> NoReturn:
    """Import the packages, and fork a child for each request until this process is killed."""
    for name in IMPORTED:
        import_module(name)
    # Without this line the garbage collector of each child would touch, and so copy, all objects.
    gc.freeze()
    # Without this line each child would stay as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    attend(connection)


def attend(connection: socket.socket) -> NoReturn:
    """Run one request in a child, and answer with its exit code."""
    request, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
    while not request.endswith(b"\n"):
        request += connection.recv(REQUEST_BYTES)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        run(*json.loads(request))
    for file in files:
        os.close(file)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
    os._exit(0)


def run(name: str, arguments: list[str], folder: str, environment: dict[str, Any]) -> NoReturn:
    """Run the command ``broker``, or the program that the first argument names, and exit."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if name == "broker":
        sys.argv[:] = [name, *arguments]
        import_module("broker.cli").main()
    else:
        sys.argv[:] = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1])

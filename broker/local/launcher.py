"""``broker cluster up``: a cluster for people and for programs, until SIGTERM or Ctrl-C.

With JSON it prints one line when the cluster is ready. It names the command of each process, so that a person or a
program can start a killed process again, in the foreground (``member.run``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

from broker.escapes import escaped_lines
from broker.local.addresses import Sizes
from broker.local.cluster import LocalCluster
from broker.local.plan import Settings
from broker.local.servers import ServerFailed, ServerMissing

FIRST_PORT: Final = 8081


def launch(sizes: Sizes, folder: Path | None, settings: Settings, *, as_json: bool) -> int:
    """Run a cluster until a signal. Return 0 after a clean end, 1 if a process could not be started."""
    cluster = LocalCluster(sizes, folder=folder, settings=settings, report=_progress)
    interrupting = _Interrupting(cluster)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupting)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As under nohup.
        signal.signal(signal.SIGHUP, interrupting)
    return up(cluster, as_json=as_json)


def up(cluster: LocalCluster, *, as_json: bool) -> int:
    """Start a cluster, print its description, and end it at the first signal."""
    try:
        with cluster:
            _say(json.dumps(described(cluster)) if as_json else welcome(cluster))
            while True:
                signal.pause()
    except KeyboardInterrupt:
        _progress("stopped")
        return 0
    except (ServerFailed, ServerMissing, OSError) as error:
        _progress(f"the cluster did not start: {error}")
        return 1


class _Interrupting:
    """A signal handler. The first signal ends the cluster cleanly; a second one kills its processes at once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            for member in self._cluster.members:
                member.kill()
            return
        self._interrupted = True
        _progress("stopping; Ctrl-C again kills the processes")
        raise KeyboardInterrupt


def described(cluster: LocalCluster) -> dict[str, Any]:
    """Return the description of all processes, for programs."""
    return {
        "processes": [
            {
                "name": member.name,
                "kind": member.kind,
                "pid": member.pid,
                "url": member.url,
                "command": member.command,
                "env": member.outside,
                "cwd": str(member.folder),
            }
            for member in cluster.members
        ]
    }


def welcome(cluster: LocalCluster) -> str:
    """Return commands that use the cluster, for people."""
    urls = cluster.urls
    if not urls:
        return "Storage and ZooKeeper are ready; there are no nodes. Ctrl-C stops everything."
    broker = Path(sys.executable).with_name("broker")
    shown = broker.relative_to(Path.cwd()) if broker.is_relative_to(Path.cwd()) else broker
    return (
        f"\n{len(urls)} nodes serve. Publish to one, tail from another:\n\n"
        f"  {shown} topics create --url {urls[0]} demo/greetings\n"
        f"  {shown} publish --url {urls[0]} demo/greetings hello\n"
        f"  {shown} tail --url {urls[-1]} demo/greetings\n\n"
        "Ctrl-C stops everything."
    )


def _progress(line: str) -> None:
    _write(sys.stderr, line)


def _say(line: str) -> None:
    _write(sys.stdout, line)


def _write(stream: TextIO, line: str) -> None:
    # The reader of a pipe may have gone, or a terminal; the cluster runs all the same, and ends in order.
    with suppress(OSError):
        os.write(stream.fileno(), escaped_lines(line).encode() + b"\n")

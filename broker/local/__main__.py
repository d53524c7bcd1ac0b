"""``python -m broker.local up|run``: a cluster for people and for programs.

``up`` starts a cluster and runs until SIGTERM or Ctrl-C. With ``--json`` it prints one line when the cluster is
ready. ``run NAME --dir DIR`` becomes one of the cluster's processes, after it has written its pid. So a person or
a program can start a killed process again, in the foreground.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from broker.config.sections import iter_keys
from broker.escapes import escaped_lines
from broker.local.addresses import Sizes
from broker.local.cluster import LocalCluster
from broker.local.member import run
from broker.local.servers import ServerFailed, ServerMissing
from broker.standard_streams import open_standard_streams

FIRST_PORT = 8081


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 after a clean end, 1 if a process could not be started.
    """
    given = _parser().parse_args(arguments)
    if given.command == "run":
        run(given.dir.resolve(), given.name)
    cluster = LocalCluster(
        Sizes(
            nodes=given.nodes,
            zookeepers=given.zookeepers,
            region_servers=given.region_servers,
            gateways=given.gateways,
            first_port=given.ports,
        ),
        folder=given.dir,
        settings=dict(given.set),
        report=_progress,
    )
    interrupting = _Interrupting(cluster)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupting)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As under nohup.
        signal.signal(signal.SIGHUP, interrupting)
    return up(cluster, as_json=given.json)


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m broker.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    upping = commands.add_parser("up", help="start a cluster; run until SIGTERM or Ctrl-C")
    upping.add_argument("--nodes", type=int, default=3, help="number of brokers (default 3)")
    upping.add_argument(
        "--zookeepers", type=int, choices=(1, 3), default=1, help="number of ZooKeepers (default 1)"
    )
    upping.add_argument(
        "--region-servers", type=int, default=1, help="number of region servers (default 1)"
    )
    upping.add_argument(
        "--gateways", type=int, default=1, help="number of Thrift-2 gateways (default 1)"
    )
    upping.add_argument(
        "--dir", type=Path, help="folder for all files; it is kept (default: a temporary folder)"
    )
    upping.add_argument(
        "--json", action="store_true", help="print one line of JSON when the cluster is ready"
    )
    upping.add_argument(
        "--ports",
        type=_port,
        default=FIRST_PORT,
        help=f'port of the first node, or "free" for free ports (default {FIRST_PORT})',
    )
    upping.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="SECTION.KEY=JSON",
        help="set a key in every node's configuration",
    )
    running = commands.add_parser("run", help="become a process of a cluster")
    running.add_argument("name")
    running.add_argument("--dir", type=Path, required=True)
    return parser


def _port(text: str) -> int | None:
    if text != "free" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no port, and not 'free'")
    return None if text == "free" else int(text)


def _setting(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if key not in {each.dotted for each in iter_keys()}:
        raise argparse.ArgumentTypeError(f"there is no key {key!r}; see: broker config")
    try:
        return key, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"the value of {key} is no JSON: {value!r}") from None


def _progress(line: str) -> None:
    _write(sys.stderr, line)


def _say(line: str) -> None:
    _write(sys.stdout, line)


def _write(stream: TextIO, line: str) -> None:
    # The reader of a pipe may have gone, or a terminal; the cluster runs all the same, and ends in order.
    with suppress(OSError):
        os.write(stream.fileno(), escaped_lines(line).encode() + b"\n")


if __name__ == "__main__":
    open_standard_streams()
    sys.exit(main())

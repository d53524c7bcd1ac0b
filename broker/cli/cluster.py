"""``broker cluster``: several nodes that serve the same topics.

``up`` replaces this process by the launcher of ``broker.local``, which is a program of its own: no other
package of the product imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

import click

from broker.cli import leadership
from broker.cli.options import json_option
from broker.config.sources import check_environment
from broker.errors import install_command

LAUNCHER: Final = "broker.local"
OF_NODES: Final = "kazoo"
"""The package that the nodes of a cluster need beside those of a standalone broker."""


@click.group()
def cluster() -> None:
    """Start a cluster on this machine; show and steer any cluster. NODE is an instance id or a URL.

    \b
    broker cluster up
    broker cluster status
    broker cluster leaders audit/logins
    broker cluster drain 2 --wait
    broker cluster move audit/logins http://10.0.0.1:8080
    """  # noqa: D301
    # `up` gives the environment to its processes. A wrong variable would end each of them with an error.
    check_environment(os.environ)


@cluster.command()
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(min=0), help="Number of brokers."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for all files; it is kept.  [default: a temporary folder, removed at the end]",
)
@click.option(
    "--ports",
    default="8081",
    show_default=True,
    metavar="FIRST|free",
    help='Port of the first node; the other nodes have the next ports. "free": any free ports.',
)
@click.option(
    "--zookeepers",
    default="1",
    show_default=True,
    type=click.Choice(["1", "3"]),
    help="Number of ZooKeeper servers.",
)
@click.option(
    "--region-servers",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of HBase's region servers.",
)
@click.option(
    "--gateways",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of HBase's Thrift-2 gateways.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=JSON",
    help="Set a key in every node's configuration.",
)
@json_option
def up(  # noqa: PLR0913, PLR0917 - One parameter per option.
    nodes: int,
    directory: Path | None,
    ports: str,
    zookeepers: str,
    region_servers: int,
    gateways: int,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start a cluster on this machine, to try it out and for tests; stop it with Ctrl-C.

    ZooKeeper, HBase (a master, region servers, Thrift-2 gateways) and the nodes run as separate
    processes. Before the first start, fetch the servers once: python -m broker.local.servers fetch hbase

    With --json, the command prints one line when the cluster is ready. It gives the name, kind, pid and url of
    each process, and the command that starts it again.

    \b
    broker cluster up
    broker cluster up --nodes 5 --ports free --dir trial --json
    broker cluster up --set cluster.session_timeout_ms=2000
    """  # noqa: D301
    # Without this check the nodes would say so, some seconds later: they start after ZooKeeper and HBase.
    if importlib.util.find_spec(OF_NODES) is None:
        raise click.ClickException(
            f"a cluster needs the package {OF_NODES!r}: {install_command('cluster')}"
        )
    words = [
        *("--nodes", str(nodes), "--ports", ports, "--zookeepers", zookeepers),
        *("--region-servers", str(region_servers), "--gateways", str(gateways)),
        *(word for setting in settings for word in ("--set", setting)),
        *(("--dir", str(directory)) if directory is not None else ()),
        *(("--json",) if as_json else ()),
    ]
    command = [sys.executable, "-m", LAUNCHER, "up", *words]
    os.execv(sys.executable, command)  # noqa: S606 - No shell is wanted.


for steer in leadership.COMMANDS:
    cluster.add_command(steer)

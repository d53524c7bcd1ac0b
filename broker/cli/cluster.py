"""``broker cluster``: many nodes that serve the same topics.

``up`` becomes the launcher of the test kit, which is a program of its own: nothing of the product imports
the test kit.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

import click

from broker.cli import steering
from broker.cli.options import json_option
from broker.config.sources import check_environment

LAUNCHER: Final = "broker.local"


@click.group()
def cluster() -> None:
    """Run a cluster, and look after one. NODE is an instance id or a URL.

    \b
    broker cluster up
    broker cluster status
    broker cluster leaders audit/logins
    broker cluster drain 2 --wait
    broker cluster move audit/logins http://10.0.0.1:8080
    """  # noqa: D301
    check_environment(
        os.environ
    )  # The processes that `up` starts get it, and would end with an error.


@cluster.command()
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for everything that is written; kept.  [default: a temporary one, removed]",
)
@click.option(
    "--ports",
    default="8081",
    show_default=True,
    metavar="FIRST|free",
    help="Port of the first node, the others following; or free ones.",
)
@click.option("--zookeepers", default="1", show_default=True, type=click.Choice(["1", "3"]))
@click.option("--region-servers", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--gateways", default=1, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=JSON",
    help="A key of every node's configuration.",
)
@json_option
def up(  # noqa: PLR0913, PLR0917 - One parameter an option, as click wants it.
    nodes: int,
    directory: Path | None,
    ports: str,
    zookeepers: str,
    region_servers: int,
    gateways: int,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start a cluster on this machine, for trying it out and for tests; stop it with Ctrl-C.

    ZooKeeper, HBase (a master, region servers, Thrift-2 gateways) and the nodes are processes of their
    own. Fetch the servers once: python -m broker.local.servers fetch hbase

    With --json one line tells, when all is ready, of each process its name, kind, pid, url, and the
    command that starts it again.

    \b
    broker cluster up
    broker cluster up --nodes 5 --ports free --dir trial --json
    broker cluster up --set cluster.session_timeout_ms=2000
    """  # noqa: D301
    if importlib.util.find_spec(LAUNCHER) is None:
        raise click.ClickException(f"this installation has no {LAUNCHER}")
    words = [
        *("--nodes", str(nodes), "--ports", ports, "--zookeepers", zookeepers),
        *("--region-servers", str(region_servers), "--gateways", str(gateways)),
        *(word for setting in settings for word in ("--set", setting)),
        *(("--dir", str(directory)) if directory is not None else ()),
        *(("--json",) if as_json else ()),
    ]
    command = [sys.executable, "-m", LAUNCHER, "up", *words]
    os.execv(sys.executable, command)  # noqa: S606 - No shell is wanted.


for steer in steering.COMMANDS:
    cluster.add_command(steer)

"""``broker cluster``: several nodes that serve the same topics. ``leadership`` has the commands that steer them."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.command.broker_calls import BrokerCall, Json, asks, json_option, to_broker
from broker.cli.command.options import TOPIC, flag, option
from broker.cli.command.output import table, value_of, write_line
from broker.cli.nodes import leadership
from broker.client import SyncClient, admin
from broker.config.sections import iter_keys
from broker.config.sources import check_environment
from broker.errors import install_command
from broker.model import TopicId

OF_NODES: Final = "kazoo"
"""The package that the nodes of a cluster need beside those of a standalone broker."""

STATE_COLOURS: Final = {
    "serving": "green",
    "drained": "yellow",
    "stopping": "yellow",
    "silent": "red",
}


@click.group()
def cluster() -> None:
    """Start a cluster on this machine; show and steer any cluster. NODE is an instance id or a URL.

    \b
    broker cluster up
    broker cluster status
    broker cluster leaders audit/logins
    broker cluster drain 2 --wait
    broker cluster move audit/logins http://10.0.0.1:8080
    """
    # `up` gives the environment to its processes. A wrong variable would end each of them with an error.
    check_environment(os.environ)


def _port(_: click.Context, __: click.Parameter, text: str) -> int | None:
    if text != "free" and not text.isdecimal():
        raise click.BadParameter(f"{text!r} is no port, and not 'free'")
    return None if text == "free" else int(text)


def _settings(
    _: click.Context, __: click.Parameter, texts: Sequence[str]
) -> Sequence[tuple[str, Any]]:
    known = {each.dotted for each in iter_keys()}
    found = []
    for key, _equals, value in (text.partition("=") for text in texts):
        if key not in known:
            raise click.BadParameter(f"there is no key {key!r}; see: broker config")
        try:
            found.append((key, json.loads(value)))
        except ValueError:
            raise click.BadParameter(f"the value of {key} is no JSON: {value!r}") from None
    return found


@cluster.command()
@option("--nodes", click.IntRange(0), 3, "Number of brokers.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for all files; it is kept.  [default: a temporary folder, removed at the end]",
)
@click.option(
    "--ports",
    "port",
    default="8081",
    show_default=True,
    metavar="FIRST|free",
    callback=_port,
    help='Port of the first node; the other nodes have the next ports. "free": any free ports.',
)
@click.option(
    "--zookeepers",
    default="1",
    show_default=True,
    type=click.Choice(["1", "3"]),
    callback=lambda _, __, text: int(text),
    help="Number of ZooKeeper servers.",
)
@option("--region-servers", click.IntRange(1), 1, "Number of HBase's region servers.")
@option("--gateways", click.IntRange(1), 1, "Number of HBase's Thrift-2 gateways.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=JSON",
    callback=_settings,
    help="Set a key in every node's configuration.",
)
@json_option
def up(
    *,
    folder: Path | None,
    port: int | None,
    settings: Sequence[tuple[str, Any]],
    as_json: bool,
    **sizes: int,
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
    """
    # Without this check the nodes would say so, some seconds later: they start after ZooKeeper and HBase.
    if importlib.util.find_spec(OF_NODES) is None:
        raise click.ClickException(
            f"a cluster needs the package {OF_NODES!r}: {install_command('cluster')}"
        )
    from broker.local import Sizes, launcher  # noqa: PLC0415 - Only this command needs it.

    told = Sizes(first_port=port, **sizes)
    raise click.exceptions.Exit(launcher.launch(told, folder, dict(settings), as_json=as_json))


def storage_text(storage: Json) -> str:
    """Return a few words on how the storage answers."""
    if not storage["calls"]:
        return "no calls yet"
    # The times sort as text. If both are equal, a success followed the failure at once.
    failing = (storage["last_failure"] or "") > (storage["last_success"] or "")
    return (
        f"{'failing' if failing else 'answers'}, {storage['errors']} of {storage['calls']} failed"
    )


def _seen(field: str, text: Callable[[Any], object] = str) -> Callable[[Json], object]:
    """Return a field of a node's view of itself; a question mark if the node does not answer."""
    return lambda row: "?" if row["view"] is None else text(value_of(row["view"], field))


_NODES = table(
    *("NODE", "URL", "STATE", "VERSION", "SLOTS", "TOPICS", "ZOOKEEPER", "STORAGE", "CLOCK", "UP"),
    fields={
        "SLOTS": _seen("slots_led"),
        "TOPICS": _seen("topics_led"),
        "ZOOKEEPER": _seen("zookeeper.contact"),
        "STORAGE": _seen("storage", storage_text),
        "CLOCK": _seen("clock_skew_ms", lambda ms: None if ms is None else f"{ms:+d} ms"),
        "UP": _seen("uptime_s", lambda told: timedelta(seconds=int(told))),
    },
    colours=STATE_COLOURS,
    wrapped="STORAGE",
)


def _write_status(status: Json) -> None:
    _NODES(status["nodes"])
    for line in _remarks(status):
        write_line(line, err=True)


def _remarks(status: Json) -> Iterator[str]:
    """Yield the remarks that the table has no column for."""
    for row in status["nodes"]:
        view = row["view"]
        if row["problem"] is not None:
            yield f"node {row['node']} does not answer: {row['problem']}"
        elif view is not None:
            yield from _remarks_on(row["node"], view)
    live = {row["node"] for row in status["nodes"]}
    for node in status["drained"] or ():
        if node not in live:
            yield f"node {node} is drained and not running"
    if status["contact"] != "connected":
        yield (
            f"node {status['asked']} has no contact with ZooKeeper ({status['contact']}): "
            "the table shows the nodes that it knew before"
        )
    if status["pins"] is None:
        yield f"pins and drained nodes are not known: {status['problem']}"
        return
    if status["problem"] is not None:
        yield f"pins or drained nodes that have no effect: {status['problem']}"
    if status["pins"]:
        yield f"pinned topics: {status['pins']}"


def _remarks_on(node: int, view: Json) -> Iterator[str]:
    error = view["storage"]["last_error"]
    if error is not None:
        yield f"node {node}, last error of storage at {view['storage']['last_failure']}: {error}"


_TOPICS = table("TOPIC", "NODE", "EPOCH")


def _write_topics(answer: dict[str, Any]) -> None:
    led = [
        {**one, "node": row["node"]}
        for row in answer["nodes"]
        for one in (row["view"] or {}).get("topics") or ()
    ]
    write_line()
    _TOPICS(sorted(led, key=lambda one: (one["topic"], str(one["node"]))))
    more = sum(row["view"]["topics_led"] for row in answer["nodes"] if row["view"]) - len(led)
    if more > 0:
        write_line(f"and {more} more", err=True)


@cluster.command()
@flag("--topics", "List also each node's topics and their epochs.", "with_topics")
@to_broker
def status(call: BrokerCall, with_topics: bool) -> None:
    """Show all nodes, the slots and topics that they lead, and their health.

    Each node reports the slots and topics that it leads, and how ZooKeeper and its storage answer. A node
    that does not answer is shown as silent.

    \b
    broker cluster status
    broker cluster status --topics --json
    """
    with call.client() as client:
        answer = client.ask(admin.status(with_topics=with_topics))
    call.write(answer, _write_status)
    if with_topics and not call.as_json:
        _write_topics(answer)


@cluster.command()
@click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="NS/TOPIC...")
@asks(table("TOPIC", "NODE", "URL", "EPOCH"))
def leaders(client: SyncClient, topics: tuple[TopicId, ...]) -> list[Json]:
    """Show the leader of each topic.

    The epoch is empty if no message was written to the topic since its leader changed.

    \b
    broker cluster leaders audit/logins
    broker cluster leaders audit/logins jobs/states --json
    """
    return [{"topic": "/".join(topic), **client.ask(admin.leader(topic))} for topic in topics]


for steer in leadership.COMMANDS:
    cluster.add_command(steer)

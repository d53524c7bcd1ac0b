"""The steering commands of ``broker cluster``: show nodes and leaders, drain nodes, move topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from broker.cli.cluster_text import ProgressLine, write_status
from broker.cli.options import TOPIC, SpanType, connect, to_broker, topic_argument
from broker.cli.output import write_json, write_line, write_table
from broker.client import SyncClient, admin
from broker.errors import Overloaded
from broker.model import TopicId

Command = TypeVar("Command", bound=Callable[..., Any])

LOOK_EVERY_S: Final = 0.2
_node_argument = click.argument("node", metavar="NODE")


def _wait_options(command: Command) -> Command:
    """Add the options of a command that can wait for the end of the change that it starts."""
    wait = click.option("--wait", is_flag=True, help="Return when the change is complete.")
    bound = click.option(
        "--wait-max",
        "wait_s_max",
        type=SpanType(0.1),
        default=120.0,
        show_default=True,
        help="Wait at most so many seconds; then the exit code is 4.",
    )
    return wait(bound(command))


@click.command()
@click.option(
    "--topics", "with_topics", is_flag=True, help="List also each node's topics and their epochs."
)
@to_broker
def status(*, with_topics: bool, url: str, deadline_s: float, as_json: bool) -> None:
    """Show all nodes, the slots and topics that they lead, and their health.

    Each node reports the slots and topics that it leads, and how ZooKeeper and its storage answer. A node
    that does not answer is shown as silent.

    \b
    broker cluster status
    broker cluster status --topics --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        answer = client.ask(admin.status(with_topics=with_topics))
    if as_json:
        write_json(answer)
        return
    write_status(answer)
    if with_topics:
        _write_topics(answer)


def _write_topics(answer: dict[str, Any]) -> None:
    led = [
        (one["topic"], str(row["node"]), str(one["epoch"]))
        for row in answer["nodes"]
        for one in (row["view"] or {}).get("topics") or ()
    ]
    write_line()
    write_table(("TOPIC", "NODE", "EPOCH"), sorted(led))
    more = sum(row["view"]["topics_led"] for row in answer["nodes"] if row["view"]) - len(led)
    if more > 0:
        write_line(f"and {more} more", err=True)


@click.command()
@click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="NS/TOPIC...")
@to_broker
def leaders(*, topics: tuple[TopicId, ...], url: str, deadline_s: float, as_json: bool) -> None:
    """Show the leader of each topic.

    The epoch is empty if no message was written to the topic since its leader changed.

    \b
    broker cluster leaders audit/logins
    broker cluster leaders audit/logins jobs/states --json
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        found = [{"topic": _name(topic), **client.ask(admin.leader(topic))} for topic in topics]
    if as_json:
        write_json(found)
        return
    rows = [[_text(led[column]) for column in ("topic", "node", "url", "epoch")] for led in found]
    write_table(("TOPIC", "NODE", "URL", "EPOCH"), rows)


@click.command()
@_node_argument
@_wait_options
@to_broker
def drain(
    *, node: str, wait: bool, wait_s_max: float, url: str, deadline_s: float, as_json: bool
) -> None:
    """Drain a node: hand over all its topics to the other nodes.

    The node goes on serving, and forwards requests to the leaders. It stays drained, also after a restart,
    until: broker cluster undrain

    \b
    broker cluster drain 2 --wait
    broker cluster drain http://10.0.0.2:8080
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        answer = client.ask(admin.drain(node))
        number = answer["node"]
        if wait:
            _wait(lambda: _still_led(client, number), wait_s_max, silent=as_json)
    if as_json:
        write_json(answer)
        return
    write_line(f"node {number} {'leads nothing' if wait else 'is drained'}", err=True)
    if not wait:
        write_line("Its topics are moving. See the progress with: broker cluster status", err=True)


@click.command()
@_node_argument
@to_broker
def undrain(*, node: str, url: str, deadline_s: float, as_json: bool) -> None:
    """Let a drained node lead again.

    It takes over its share of the topics.

    \b
    broker cluster undrain 2
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        answer = client.ask(admin.undrain(node))
    if as_json:
        write_json(answer)
        return
    done = "may lead again" if answer["changed"] else "was not drained"
    write_line(f"node {answer['node']} {done}", err=True)


@click.command()
@topic_argument
@_node_argument
@_wait_options
@to_broker
def move(  # noqa: PLR0913 - One parameter per option.
    *,
    topic: TopicId,
    node: str,
    wait: bool,
    wait_s_max: float,
    url: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Pin a topic to a node.

    The node leads the topic while it is running and not drained.

    \b
    broker cluster move audit/logins 2 --wait
    broker cluster move audit/logins http://10.0.0.2:8080
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        answer = client.ask(admin.pin(topic, node))
        number = answer["node"]
        if wait:
            _wait(lambda: _other_leader(client, topic, number), wait_s_max, silent=as_json)
    if as_json:
        write_json(answer)
        return
    done = "is led by" if wait else "is pinned to"
    write_line(f"{_name(topic)} {done} node {number}", err=True)
    if not wait:
        write_line(
            f"It is moving. See its leader with: broker cluster leaders {_name(topic)}", err=True
        )


@click.command()
@topic_argument
@to_broker
def unpin(*, topic: TopicId, url: str, deadline_s: float, as_json: bool) -> None:
    """Remove a topic's pin: any node may lead it again.

    \b
    broker cluster unpin audit/logins
    """  # noqa: D301
    with connect(url, deadline_s) as client:
        answer = client.ask(admin.unpin(topic))
    if as_json:
        write_json(answer)
        return
    done = "is no longer pinned" if answer["changed"] else "had no pin"
    write_line(f"{_name(topic)} {done}", err=True)


COMMANDS: Final = (status, leaders, drain, undrain, move, unpin)


# --- Waiting ---------------------------------------------------------------------------------------


def _still_led(client: SyncClient, node: int) -> str | None:
    """Return a text about the slots and topics that a node still leads; None if it leads none."""
    for row in client.ask(admin.status())["nodes"]:
        if row["node"] != node:
            continue
        view = row["view"]
        if view is None:
            return f"node {node} does not report what it leads: {row['problem']}"
        slots, topics = view["slots_led"], view["topics_led"]
        return f"node {node} leads {topics} topics, {slots} slots" if slots or topics else None
    return None  # It has left.


def _other_leader(client: SyncClient, topic: TopicId, node: int) -> str | None:
    """Return a text about the other leader of a topic; None if ``node`` leads it.

    The assigned node reports itself as the leader before it claims the topic's log, which it does at the
    next write. The epoch is empty until then. Meanwhile another node may still hold the topic, so this
    function asks all nodes.
    """
    answer = client.ask(admin.leader(topic))
    led = answer["node"]
    if led == node and answer["epoch"] is None:
        led = next((one for one in _nodes_that_lead(client, topic) if one != node), node)
    if led == node:
        return None
    return f"{_name(topic)} is led by {'no node' if led is None else f'node {led}'}"


def _nodes_that_lead(client: SyncClient, topic: TopicId) -> list[int]:
    rows = client.ask(admin.status(topic=topic))["nodes"]
    return [row["node"] for row in rows if row["view"] and row["view"]["topics"]]


def _wait(
    look: Callable[[], str | None],
    wait_s_max: float,
    *,
    silent: bool,
) -> None:
    """Return when ``look`` returns None. Raises Overloaded with its last text after ``wait_s_max``."""
    deadline = time.monotonic() + wait_s_max
    progress = ProgressLine(silent=silent)
    pause = threading.Event()
    try:
        while (left := look()) is not None:
            progress(left)
            if time.monotonic() > deadline:
                raise Overloaded(
                    f"The change is stored and in progress, but after {wait_s_max:g} s {left}."
                )
            pause.wait(LOOK_EVERY_S)
    finally:
        progress.end()


def _name(topic: TopicId) -> str:
    return f"{topic.namespace}/{topic.topic}"


def _text(value: object) -> str:
    return "" if value is None else str(value)

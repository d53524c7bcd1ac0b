"""The steering commands of ``broker cluster``: drain nodes, move topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import click

from broker.cli.command.broker_calls import BrokerCall, Json, asks, to_broker
from broker.cli.command.options import Command, SpanType, flag, option, topic_argument
from broker.cli.command.output import live_line, write_line
from broker.client import SyncClient, admin
from broker.client.client_request import ClientRequest
from broker.errors import Overloaded
from broker.model import TopicId

LOOK_EVERY_S: Final = 0.2
_node_argument = click.argument("node", metavar="NODE")


def _wait_options(command: Command) -> Command:
    """Add the options of a command that can wait for the end of the change that it starts."""
    wait = flag("--wait", "Return when the change is complete.")
    bound = option(
        "--wait-max",
        SpanType(0.1),
        120.0,
        "Wait at most so many seconds; then the exit code is 4.",
        "wait_s_max",
    )
    return wait(bound(command))


@click.command()
@_node_argument
@_wait_options
@to_broker
def drain(call: BrokerCall, node: str, wait: bool, wait_s_max: float) -> None:
    """Drain a node: hand over all its topics to the other nodes.

    The node goes on serving, and forwards requests to the leaders. It stays drained, also after a restart,
    until: broker cluster undrain

    \b
    broker cluster drain 2 --wait
    broker cluster drain http://10.0.0.2:8080
    """
    _change(
        call,
        admin.drain(node),
        _still_led if wait else None,
        wait_s_max,
        ("node {node} is drained", "node {node} leads nothing"),
        "Its topics are moving. See the progress with: broker cluster status",
    )


@click.command()
@_node_argument
@asks(
    lambda told: "node {node} may lead again" if told["changed"] else "node {node} was not drained"
)
def undrain(client: SyncClient, node: str) -> Json:
    """Let a drained node lead again.

    It takes over its share of the topics.

    \b
    broker cluster undrain 2
    """
    return client.ask(admin.undrain(node))


@click.command()
@topic_argument
@_node_argument
@_wait_options
@to_broker
def move(call: BrokerCall, topic: TopicId, node: str, wait: bool, wait_s_max: float) -> None:
    """Pin a topic to a node.

    The node leads the topic while it is running and not drained.

    \b
    broker cluster move audit/logins 2 --wait
    broker cluster move audit/logins http://10.0.0.2:8080
    """
    name = "/".join(topic)
    _change(
        call,
        admin.pin(topic, node),
        (lambda client, number: _other_leader(client, topic, number)) if wait else None,
        wait_s_max,
        (f"{name} is pinned to node {{node}}", f"{name} is led by node {{node}}"),
        f"It is moving. See its leader with: broker cluster leaders {name}",
    )


@click.command()
@topic_argument
@asks(lambda told: "{topic} is no longer pinned" if told["changed"] else "{topic} had no pin")
def unpin(client: SyncClient, topic: TopicId) -> Json:
    """Remove a topic's pin: any node may lead it again.

    \b
    broker cluster unpin audit/logins
    """
    return client.ask(admin.unpin(topic))


COMMANDS: Final = (drain, undrain, move, unpin)


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
        rows = client.ask(admin.status(topic=topic))["nodes"]
        leading = (row["node"] for row in rows if row["view"] and row["view"]["topics"])
        led = next((one for one in leading if one != node), node)
    if led == node:
        return None
    return f"{'/'.join(topic)} is led by {'no node' if led is None else f'node {led}'}"


def _change(
    call: BrokerCall,
    request: ClientRequest,
    look: Callable[[SyncClient, int], str | None] | None,
    wait_s_max: float,
    told: tuple[str, str],
    advice: str,
) -> None:
    """Start a change, and wait until ``look`` returns None; without ``look`` write the advice instead.

    ``told`` are the lines about a change that was started, and one that is complete.
    Raises Overloaded with the last text of ``look`` after ``wait_s_max``.
    """
    with call.client() as client:
        answer = client.ask(request)
        if look is not None:
            deadline = time.monotonic() + wait_s_max
            pause = threading.Event()
            with live_line(silent=call.as_json) as show:
                while (left := look(client, answer["node"])) is not None:
                    show(left)
                    if time.monotonic() > deadline:
                        raise Overloaded(
                            f"The change is stored and in progress, but after {wait_s_max:g} s {left}."
                        )
                    pause.wait(LOOK_EVERY_S)
    call.write(answer, told[look is not None].format(node=answer["node"]))
    if look is None and not call.as_json:
        write_line(advice, err=True)

"""The steering commands of ``broker cluster``: drain nodes, move topics."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import click

from broker.cli.broker_calls import BrokerCall, Command, Json, asks, to_broker
from broker.cli.options import SpanType, topic_argument
from broker.cli.output import rewrite_line, write_line
from broker.client import SyncClient, admin
from broker.errors import Overloaded
from broker.model import TopicId

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
    with call.client() as client:
        answer = client.ask(admin.drain(node))
        number = answer["node"]
        if wait:
            _wait(lambda: _still_led(client, number), wait_s_max, silent=call.as_json)
    done = "leads nothing" if wait else "is drained"
    call.write(answer, f"node {number} {done}")
    if not (wait or call.as_json):
        write_line("Its topics are moving. See the progress with: broker cluster status", err=True)


def _write_undrained(answer: Json) -> None:
    done = "may lead again" if answer["changed"] else "was not drained"
    write_line(f"node {answer['node']} {done}", err=True)


@click.command()
@_node_argument
@asks(_write_undrained)
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
    with call.client() as client:
        answer = client.ask(admin.pin(topic, node))
        number = answer["node"]
        if wait:
            _wait(lambda: _other_leader(client, topic, number), wait_s_max, silent=call.as_json)
    name, done = "/".join(topic), "is led by" if wait else "is pinned to"
    call.write(answer, f"{name} {done} node {number}")
    if not (wait or call.as_json):
        write_line(f"It is moving. See its leader with: broker cluster leaders {name}", err=True)


@click.command()
@topic_argument
@to_broker
def unpin(call: BrokerCall, topic: TopicId) -> None:
    """Remove a topic's pin: any node may lead it again.

    \b
    broker cluster unpin audit/logins
    """
    with call.client() as client:
        answer = client.ask(admin.unpin(topic))
    done = "is no longer pinned" if answer["changed"] else "had no pin"
    call.write(answer, f"{'/'.join(topic)} {done}")


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
        led = next((one for one in _nodes_that_lead(client, topic) if one != node), node)
    if led == node:
        return None
    return f"{'/'.join(topic)} is led by {'no node' if led is None else f'node {led}'}"


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


class ProgressLine:
    """One line on standard error that shows progress; a terminal overwrites it, a file gets more lines."""

    def __init__(self, *, silent: bool) -> None:
        """Make the line; it writes nothing if ``silent``."""
        self._silent = silent
        self._shown = ""
        self._rewrites = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Show a text about the progress; do nothing if it is already shown."""
        if self._silent or text == self._shown:
            return
        if self._rewrites:
            rewrite_line(text.ljust(len(self._shown)))
        else:
            write_line(text, err=True)
        self._shown = text

    def end(self) -> None:
        """End the line."""
        if self._rewrites and self._shown:
            write_line(err=True)

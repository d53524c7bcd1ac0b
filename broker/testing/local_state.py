"""The state of a cluster on this machine as text, for the message of a wait that took too long."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Any, Final

from broker.local import LocalCluster, Member, ProcessKind, pids
from broker.local.plan import ListenAddress
from broker.local.servers.process import ASK_TIMEOUT_S
from broker.wire.jsontext import json_of

TOPICS_SHOWN_MAX: Final = 20


def state_of(cluster: LocalCluster) -> str:
    """Return the state of every process, with the views of the nodes that answer."""
    return "; ".join(map(_state, cluster.members))


def _state(member: Member) -> str:
    pid = pids.live_pid(member.folder, member.name)
    if pid is None:
        code = member.exit_code
        return f"{member.name}: {'does not run' if code is None else f'ended with {code}'}"
    is_frozen = pids.kernel_state(pid) == "T"
    text = f"{member.name}: process {pid}, {'frozen' if is_frozen else 'running'}"
    is_asked = member.kind is ProcessKind.BROKER and not is_frozen
    return f"{text}, {_view_summary(member.place)}" if is_asked else text


def _view_summary(broker: ListenAddress) -> str:
    """Return a node's own view in one line: its contact, slots and topics; or the error if it does not answer."""
    try:
        return _summary(own_view(broker.host, broker.port))
    except (OSError, HTTPException, ValueError, KeyError) as error:
        return f"does not answer: {error!r}"


def _summary(view: dict[str, Any]) -> str:
    """Return a node's view of itself in one line."""
    zookeeper, storage = view["zookeeper"], view["storage"]
    led = [f"{one['topic']} in epoch {one['epoch']}" for one in view["topics"]]
    more = ", …" if len(led) > TOPICS_SHOWN_MAX else ""
    leads = ", ".join(led[:TOPICS_SHOWN_MAX]) + more or "no topic"
    draining = ", draining" if view["draining"] else ""
    return (
        f"node {view['node']}{draining}, ZooKeeper {zookeeper['contact']} {zookeeper['session']}, "
        f"{view['slots_led']} slots, leads {leads}; "
        f"storage failed {storage['errors']} of {storage['calls']}, last {storage['last_error']}"
    )


def own_view(host: str, port: int) -> dict[str, Any]:
    """Return a node's view of itself. Raises OSError, HTTPException, ValueError."""
    connection = HTTPConnection(host, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/cluster/node?topics=yes")
        view: dict[str, Any] = json_of(connection.getresponse().read())
        return view
    finally:
        connection.close()

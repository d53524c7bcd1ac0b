"""Questions that show whether a process of a cluster serves. An open port is not enough.

A gateway's port opens before HBase's master is ready, so a gateway gets a call that goes through to the master.
This call also covers the master and the region servers; for these themselves a connection to the port is enough.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

from broker.http.answer import json_of
from broker.local.plan import ListenAddress, ProcessKind
from broker.local.servers import hbase, zookeeper
from broker.local.servers.process import ASK_TIMEOUT_S

TOPICS_SHOWN_MAX: Final = 20


def question(kind: ProcessKind, place: ListenAddress) -> Callable[[], bool]:
    """Return the question for a process; an OSError that it raises means *not yet*."""
    ask = {
        ProcessKind.ZOOKEEPER: zookeeper.serves,
        ProcessKind.MASTER: _listens,
        ProcessKind.REGION_SERVER: _listens,
        ProcessKind.GATEWAY: hbase.gateway_answers,
        ProcessKind.BROKER: _is_ready,
    }[kind]
    return lambda: ask(place.host, place.port)


def view_summary(broker: ListenAddress) -> str:
    """Return a node's own view in one line: its contact, slots and topics; or the error if it does not answer."""
    try:
        return summary(own_view(broker.host, broker.port))
    except (OSError, HTTPException, ValueError, KeyError) as error:
        return f"does not answer: {error!r}"


def summary(view: dict[str, Any]) -> str:
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


def _listens(host: str, port: int) -> bool:
    socket.create_connection((host, port), timeout=ASK_TIMEOUT_S).close()
    return True


def _is_ready(host: str, port: int) -> bool:
    connection = HTTPConnection(host, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except HTTPException:
        return False
    finally:
        connection.close()

"""Start ended processes, and restart nodes that will never be ready, as a supervisor would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Final

from broker.local import Member, ProcessKind
from broker.local.servers import ServerFailed
from broker.local.servers.process import ASK_TIMEOUT_S

MEND_S: Final = 120.0


def start_missing(members: Sequence[Member]) -> list[str]:
    """Start ended processes, and wait until every process serves. It blocks.

    Returns:
        One line for each started process.

    Raises:
        TimeoutError: A process does not serve after ``MEND_S``; the message has the end of its log.
    """
    done = []
    for member in members:
        done += start_again(member)
    deadline = time.monotonic() + MEND_S
    for member in members:
        done += _await_ready(member, deadline)
    return done


def start_again(member: Member) -> list[str]:
    """Start an ended process, or restart a node that will never be ready; don't wait until it serves.

    A node whose clock was wrong leads no topic until it is restarted, even if its clock is right now.

    Returns:
        One line for a started process. It blocks.
    """
    if not member.running:
        member.launch()
        return [f"{member.name} was started"]
    if member.kind is ProcessKind.BROKER and "clock_skew" in unready(member):
        member.kill()
        member.launch()
        return [f"{member.name} was started again: its clock had been wrong"]
    return []


def _await_ready(member: Member, deadline: float) -> list[str]:
    done = []
    while True:
        try:
            member.await_ready(max(deadline - time.monotonic(), 1.0))
        except ServerFailed as error:
            if time.monotonic() > deadline:
                raise TimeoutError(str(error)) from error
            # It ended by itself, like a region server that HBase takes for dead.
            if not member.running:
                member.launch()
            done.append(f"{member.name} was started again: it had ended")
        else:
            return done


def unready(node: Member) -> str:
    """Return a node's reason for not being ready; "" if it is ready or does not answer."""
    connection = HTTPConnection(node.place.host, node.place.port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        return "" if reply.status == 200 else reply.read().decode(errors="replace")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()

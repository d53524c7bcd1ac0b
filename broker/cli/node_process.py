"""A node as a process: signals, the limit of open files, and the line with the address of the node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from typing import Literal

import uvloop

from broker import logs
from broker.config.sections import Config
from broker.monitor import MachineClocks, Monitor
from broker.node.node import Node

SWITCH_S = 0.0005
"""The time that a thread may keep the interpreter's lock while another thread waits for it.

A publish passes from the event loop to the writer thread, and back. With Python's default of 5 ms, each of
the two steps waits up to 5 ms on a busy node. Measured beside one client that only pings: the 99th percentile
of a publish was 10 to 28 ms with the default, and 2.4 to 4.1 ms with 1 ms. With 0.2 ms publishing was 10 %
slower.
"""
FILES_BESIDE_CONNECTIONS = 1500
"""The open files that are not connections: the database's tables, its log, and a reserve."""

log = logs.get_logger()


def serve(config: Config) -> str | None:
    """Serve in this process until a signal, under uvloop.

    Returns None after a signal, or the reason if the node had to stop by itself. Raises the same errors as
    Node.start.
    """
    with logs.writing(config.logs):
        _allow_files(config.server.connections_max + FILES_BESIDE_CONNECTIONS)
        sys.setswitchinterval(SWITCH_S)
        return uvloop.run(_run(config))


async def _run(config: Config) -> str | None:
    node = Node(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signalled = asyncio.ensure_future(stop.wait())
    if not await _started(node, signalled):
        return None
    gc.collect()
    # Modules and other lasting objects, 61,000 in a new node: a full collection of them holds the loop for 13 ms and
    # more (measured in docs/internals/a-publish.md). Later collections skip them.
    gc.freeze()
    _say(f"broker ready at {node.url}")
    with contextlib.closing(MachineClocks()) as clocks, Monitor(node.metrics.loop_held, clocks):
        await asyncio.wait((signalled, node.stopped), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    reason = node.stopped.result() if node.stopped.done() else None
    await node.stop()
    return reason


async def _started(node: Node, signalled: asyncio.Future[Literal[True]]) -> bool:
    """Start a node. Return False if a signal came first; then nothing is left open. Raises as Node.start."""
    starting = asyncio.ensure_future(node.start())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # The start may wait for an absent server, longer than a stop may take.
        log.info("stopped during the start")
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def _say(line: str) -> None:
    # The parent process may have closed the pipe; the node serves all the same.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to ``wanted``, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("fewer open files are allowed than may be needed", wanted=wanted, limit=allowed)

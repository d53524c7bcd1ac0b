"""A node as a process: signals, the limit of open files, and the line that says where it listens."""

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
"""How long a thread may keep the interpreter's lock while another waits for it.

A publish passes from the event loop to the thread that writes, and back. With Python's 5 ms, each of these
waits up to 5 ms on a busy node: 99 of 100 publishes took 10 to 28 ms beside one client that did nothing but
ping, and 2.4 to 4.1 ms with 1 ms. With 0.2 ms publishing was a tenth slower.
"""
FILES_BESIDE_CONNECTIONS = 1500
"""The database's tables, its log, and some."""

NEW_OBJECTS_MAX = 5_000
"""After so many new objects the collector looks at them: a publish makes some dozen, which are gone by then."""

log = logs.get_logger()


def serve(config: Config) -> str | None:
    """Serve in this process until a signal, under uvloop.

    Returns None after a signal, and the reason where the node had to stop by itself. Raises as
    Node.start does.
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
    gc.set_threshold(NEW_OBJECTS_MAX, 10, 10)
    gc.freeze()  # Modules and what was made once: a later collection need not look at them again.
    _say(f"broker ready at {node.url}")
    with contextlib.closing(MachineClocks()) as clocks, Monitor(node.metrics.loop_held, clocks):
        await asyncio.wait((signalled, node.stopped), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    reason = node.stopped.result() if node.stopped.done() else None
    await node.stop()
    return reason


async def _started(node: Node, signalled: asyncio.Future[Literal[True]]) -> bool:
    """Start a node; False if a signal came first, after which nothing is open. Raises as Node.start."""
    starting = asyncio.ensure_future(node.start())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # What it waits for, a server perhaps that is not there, may take longer than a stop may.
        log.info("stopped while it was starting")
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def _say(line: str) -> None:
    # Whoever started us may have closed the pipe; serving does not depend on being heard.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to what its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("fewer open files are allowed than may be needed", wanted=wanted, limit=allowed)

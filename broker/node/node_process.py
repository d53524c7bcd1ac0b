"""A node as a process: signals, the limit of open files, and the line with the address of the node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final, Literal

import uvloop

from broker import logs
from broker.config.sections import Config, ConfigError, iter_keys, value_of
from broker.node import start_problems
from broker.node.monitor import MachineClocks, Monitor
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

RELOADED: Final = ("logs.log_level",)
"""The keys that SIGHUP changes while the node serves."""

INTERRUPTED: Final = 130
SECOND_INTERRUPT_S: Final = 0.5
"""A second interrupt that comes sooner is the same Ctrl-C, passed on by a parent process."""

log = logs.get_logger()


Reload = Callable[[], Config]
"""Reads the configuration again. Raises ConfigError."""


def serve(config: Config, reload: Reload, *, as_json: bool = False) -> str | None:
    """Serve in this process until a signal, under uvloop.

    SIGHUP reads the configuration again. With ``as_json`` the line with the address is JSON.

    Returns None after a signal, or the reason if the node had to stop by itself.

    Raises:
        TaskFailed: the node can't listen, or can't open its files, or another one has its instance id.
        UnavailableError, StorageCorrupt: as Node.start.
    """
    # Until the event loop takes it, SIGHUP would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with start_problems.told(config), logs.writing(config.logs) as sink:
        _allow_files(config.server.connections_max + FILES_BESIDE_CONNECTIONS)
        sys.setswitchinterval(SWITCH_S)
        return uvloop.run(_run(config, _NodeSignals(config, reload, sink), as_json=as_json))


class _NodeSignals:
    """The effect of each signal on a serving node."""

    def __init__(self, config: Config, reload: Reload, sink: logs.LogSink) -> None:
        """Take the signals from now on. Must be called before ``watch``."""
        self.stop = asyncio.Event()
        self._config = config
        self._reload = reload
        self._sink = sink
        self._stopped_at_s: float | None = None
        self.reload_more: Callable[[], object] = lambda: None
        """SIGHUP also calls it."""

    def watch(self) -> None:
        """Take the signals of this process. Must be called on the event loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGHUP, self._reloaded)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, _ignored, number)

    def _interrupted(self) -> None:
        """Stop; at a second Ctrl-C end the process at once: the store then recovers as after a crash."""
        now_s = asyncio.get_running_loop().time()
        if self._stopped_at_s is None:
            self._stopped_at_s = now_s
            self.stop.set()
        elif now_s - self._stopped_at_s >= SECOND_INTERRUPT_S:
            log.warning("ended at once by a second interrupt")
            self._sink.close(deadline_s=1.0)
            os._exit(INTERRUPTED)

    def _reloaded(self) -> None:
        """Read the configuration again, and take the keys that can change while the node serves."""
        try:
            found = self._reload()
        except (ConfigError, OSError) as error:
            log.warning("configuration not reloaded: the old one stays", error=str(error))
            return
        logs.set_level(found.logs.log_level)
        self.reload_more()
        changed = sorted(
            key.dotted
            for key in iter_keys()
            if key.dotted not in RELOADED
            and value_of(found, key.dotted) != value_of(self._config, key.dotted)
        )
        log.warning("configuration reloaded", log_level=found.logs.log_level.value)
        if changed:
            log.warning("changed keys need a restart", keys=changed)


def _ignored(number: signal.Signals) -> None:
    log.warning("this signal has no effect on a node", signal=number.name)


async def _run(config: Config, signals: _NodeSignals, *, as_json: bool) -> str | None:
    signals.watch()
    signalled = asyncio.ensure_future(signals.stop.wait())
    with contextlib.closing(MachineClocks()) as clocks:
        node = Node(config)
        signals.reload_more = node.reload_certificates
        if not await _started(node, signalled):
            return None
        gc.collect()
        # Modules and other lasting objects, 61,000 in a new node: a full collection of them blocks the loop for 13 ms
        # and more (measured in docs/internals/a-publish.md). Later collections skip them.
        gc.freeze()
        ready = json.dumps({"ready": node.url}) if as_json else f"broker ready at {node.url}"
        _say(ready)
        with Monitor(node.metrics.loop_blocked.observe, clocks):
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

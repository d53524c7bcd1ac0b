"""Run a whole broker in a thread of the test's process: real sockets, real LevelDB, a quick start.

It has its own event loop, so that tests may use blocking clients. Its folder is removed at the end unless the test
gave one. Tests of kills use a process instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from broker.clock import Clock
from broker.config.sections import Config, TransactionsConfig
from broker.node.node import Node

DEADLINE_S = 30.0

RESETTING: Final = Config(transactions=TransactionsConfig(transactions_reset_allowed=True))
"""The configuration of a node that allows reset and truncation of transactions."""


class ServedNode:
    """A standalone node on a free port of loopback; a context manager, usable once.

    Args:
        config: Its configuration; this class replaces address, port and data folder.
        folder: Its data folder, which is kept; default: a temporary folder.
        clock: A clock instead of the system's.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        folder: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or Config()
        self._folder = folder
        self._clock = clock
        self._stack = ExitStack()
        self._ready: Future[tuple[Node, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="served-node", daemon=True)

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._thread.start()
        self._ready.result(DEADLINE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _, loop, stop = self._ready.result()
        loop.call_soon_threadsafe(stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"the node did not stop in {DEADLINE_S:g} s"
        self._stack.close()

    @property
    def node(self) -> Node:
        """The node; its coroutines belong to its own loop."""
        return self._ready.result()[0]

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self.node.config.server.host

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.node.port

    @property
    def url(self) -> str:
        """The root of its HTTP interface."""
        return self.node.url

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        assert self._folder is not None, "entered first"
        config = dataclasses.replace(
            self._config,
            server=dataclasses.replace(self._config.server, host="127.0.0.1", port=0),
            storage=dataclasses.replace(self._config.storage, data_dir=self._folder),
        )
        node = Node(config, clock=self._clock)
        stop = asyncio.Event()
        await node.start()
        self._ready.set_result((node, asyncio.get_running_loop(), stop))
        await stop.wait()
        await node.stop()

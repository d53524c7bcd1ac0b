"""What dies with its tasks: a node of a simulation that is killed at any step.

All that it was doing stops where it was; what it had sent may still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from broker.testing.virtual_time import VirtualLoop

Result = TypeVar("Result")

_running: ContextVar[Mortal | None] = ContextVar("_running", default=None)


class NodeDied(Exception):
    """The node was killed while it worked for the caller."""


def own_tasks(loop: VirtualLoop) -> None:
    """Let every task of ``loop`` belong to the node that began it, so that it dies with it."""

    def make(
        in_loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=in_loop, **options)
        node = _running.get()
        if node is not None:
            node.tasks[task] = None
            task.add_done_callback(node.tasks.pop)
        return task

    loop.set_task_factory(make)


class Mortal:
    """What works in tasks that die with it."""

    def __init__(self, name: str) -> None:
        """Begin without any."""
        self.name = name
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """A set in the order of its members: a run must not depend on where things lie in memory."""

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Work in this one's name. Raises NodeDied if it is killed meanwhile."""
        token = _running.set(self)
        try:
            task = asyncio.get_running_loop().create_task(work)
        finally:
            _running.reset(token)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                raise NodeDied(f"{self.name} died") from None
            raise

    def die(self) -> None:
        """Stop all work where it is."""
        for task in list(self.tasks):
            task.cancel()

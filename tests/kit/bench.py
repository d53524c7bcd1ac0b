"""Run a node's topics over memory for tests: a test can delay, fail and record each call of the store.

Everything above the tables is the shipped code. A Bench runs on a virtual loop (virtual_time.py): a test can let
days pass, and each run is the same.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from broker.errors import Unavailable
from broker.model import Message, Poll, PublishRequest, Topic, TopicId
from broker.storage.columns import is_rolled_column
from broker.storage.keys import ROOT
from broker.storage.log import Logs
from broker.storage.memory.table import MemoryTable
from broker.storage.ownpage import PageBounds
from broker.storage.records import Records
from broker.storage.table import HEAD, Space, Table
from broker.testing.virtual_time import VirtualClock, VirtualLoop
from broker.topics.leader import TopicLeader
from broker.topics.retention import Sweeper
from broker.topics.settings import NO_OPTIONS, PublishedIds, PublishOptions, TopicSettings
from broker.topics.surroundings import Surroundings
from broker.topics.topics import Topics

TOPIC = TopicId("ns", "t")
Hook = Callable[..., Awaitable[Any]]
LIFE_S = 1 << 40
"""A transaction lives so long that even small write pointers are young enough."""


class HookedTable:
    """A table with hooks. After ``on(call, hook)`` the next such call is ``hook(real call, *arguments)``.

    The name of a change is its purpose::

        append    puts entries                 rolled    puts x cells      root    changes a root
        make      begins a page                head      changes a page's head alone (claim, handoff, …)
        record    changes a record

    The other calls have their own names: get, cells, columns, scan, put, delete.
    """

    def __init__(self, inner: Table) -> None:
        """Pass calls on to ``inner``."""
        self._inner = inner
        self._hooks: dict[str, deque[Hook]] = defaultdict(deque)
        self.calls: list[str] = []

    def stand_before(self, inner: Any) -> None:
        """Pass further calls on to another table."""
        self._inner = inner

    def on(self, call: str, *hooks: Hook) -> None:
        """Replace the next calls of this name by these hooks; a hook's first argument is the real call."""
        self._hooks[call].extend(hooks)

    def forget_hooks(self) -> None:
        """Remove all hooks."""
        self._hooks.clear()

    def __getattr__(self, name: str) -> Any:
        """Return a call of the table, with its hook if there is one."""
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            kind = _kind(*arguments) if name == "change" else name
            self.calls.append(kind)
            hooks = self._hooks[kind]
            if hooks:
                return hooks.popleft()(real, *arguments, **named)
            return real(*arguments, **named)

        return call


def _kind(
    space: Space,
    row: bytes,
    expected: bytes | None,
    puts: Mapping[bytes, bytes],
    deletes: Sequence[bytes] = (),
) -> str:
    """Return the purpose of a change, as listed at HookedTable."""
    del deletes
    if space is Space.RECORDS:
        return "record"
    columns = [column for column in puts if column != HEAD]
    if columns:
        return "rolled" if is_rolled_column(columns[0]) else "append"
    if is_root(row):
        return "root"
    return "make" if expected is None else "head"


def is_root(row: bytes) -> bool:
    """True if a row of messages or payloads is a root."""
    return row.split(b":", 2)[-1].startswith(bytes(4) + ROOT)


async def passing(real: Hook, *arguments: Any, **named: Any) -> Any:
    """Make the real call: a hook for the calls before the one that a test hooks."""
    return await real(*arguments, **named)


def failing(error: BaseException) -> Hook:
    """Return a hook that raises ``error`` without the real call."""

    async def hook(real: Hook, *arguments: Any, **named: Any) -> Any:
        del real, arguments, named
        raise error

    return hook


def done_but(error: BaseException) -> Hook:
    """Return a hook that makes the real call and then raises ``error``: its outcome is unknown."""

    async def hook(real: Hook, *arguments: Any, **named: Any) -> Any:
        await real(*arguments, **named)
        raise error

    return hook


def deaf_to_proofs(count: int) -> tuple[Hook, list[bytes]]:
    """Return a hook for gets that fails the next proofs, and the rows of those that it failed."""
    failed: list[bytes] = []

    async def deaf(real: Hook, space: Space, row: bytes, columns: Any) -> Any:
        if space is Space.MESSAGES and not is_root(row) and len(failed) < count:
            failed.append(row)
            raise Unavailable("down")
        return await real(space, row, columns)

    return deaf, failed


class Gate:
    """Delays a call until the gate is opened; ``reached`` is set when the call arrives."""

    def __init__(self) -> None:
        """Start closed."""
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    def open(self) -> None:
        """Let the call go on."""
        self.opened.set()

    async def before(self, real: Hook, *arguments: Any, **named: Any) -> Any:
        """Wait, then make the real call."""
        self.reached.set()
        await self.opened.wait()
        return await real(*arguments, **named)

    async def after(self, real: Hook, *arguments: Any, **named: Any) -> Any:
        """Make the real call, then wait before returning its result."""
        result = await real(*arguments, **named)
        self.reached.set()
        await self.opened.wait()
        return result


class Bench:
    """A node's topics over memory. ``restart`` forgets the process and keeps the storage."""

    def __init__(self, **settings: Any) -> None:
        """Start with empty storage. Must be called in a running virtual loop."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = VirtualClock(loop)
        self.memory = MemoryTable()
        self.bounds = PageBounds()
        self.settings: dict[str, Any] = {"transaction_life_max_s": LIFE_S, **settings}
        self._starts = 0
        self.restart()

    def restart(self, **settings: Any) -> None:
        """Drop all state except the storage, as after a crash. Earlier tasks go on unless a test ends them."""
        self._starts += 1
        self.settings.update(settings)
        self.table = HookedTable(self.memory)
        self.logs = Logs(self.table, self.clock, bounds=self.bounds)
        self.records = Records(self.logs.resolver)
        self.around = Surroundings(
            self.logs, self.clock, TopicSettings(**self.settings), owner=f"node.{self._starts}"
        )
        self.topics = Topics(self.around, self.records, seed=self._starts)
        self.sweeper = Sweeper(self.topics.leaders)

    async def create(self, topic: TopicId = TOPIC, ttl_s: int = 600, **more: str) -> Topic:
        """Create a topic."""
        return await self.topics.create(topic, {"ttl": str(ttl_s), **more})

    async def publish(
        self,
        *payloads: bytes,
        pointer: int | None = None,
        topic: TopicId = TOPIC,
        options: PublishOptions = NO_OPTIONS,
    ) -> PublishedIds:
        """Publish messages, or a reference."""
        return await self.topics.publish(topic, PublishRequest(pointer, payloads), options)

    async def stored(
        self,
        number: int,
        *payloads: bytes,
        topic: TopicId = TOPIC,
        options: PublishOptions = NO_OPTIONS,
    ) -> PublishedIds:
        """Store payloads of a transaction."""
        return await self.topics.store(topic, PublishRequest(number, payloads), options)

    async def poll(self, poll: Poll | None = None, topic: TopicId = TOPIC) -> list[Message]:
        """Return all messages of a poll."""
        stream = await self.topics.poll(topic, poll or Poll())
        return [
            Message(each.id, bytes(each.payload), each.key, each.headers)
            async for some in stream.messages()
            for each in some
        ]

    async def payloads(self, poll: Poll | None = None, topic: TopicId = TOPIC) -> list[bytes]:
        """Return the payloads of all messages of a poll."""
        return [message.payload for message in await self.poll(poll, topic)]

    async def names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics."""
        return [name async for names in self.topics.names(namespace) for name in names]

    def leader(self, topic: TopicId = TOPIC) -> TopicLeader:
        """Return the topic's leader on this node; it must exist."""
        leader = self.topics.leaders.states[topic].leader
        assert leader is not None
        return leader

    def forget_cache(self) -> None:
        """Empty the cache, so that the next read goes to storage."""
        bytes_max, self.around.cache.bytes_max = self.around.cache.bytes_max, -1
        self.around.cache.grow(0)
        self.around.cache.bytes_max = bytes_max

    async def pass_ms(self, milliseconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(milliseconds / 1000)


async def settle(iterations: int = 50) -> None:
    """Give all tasks that are ready time to run."""
    for _ in range(iterations):
        await asyncio.sleep(0)

"""Payload logs: the messages that a transaction stores, shown later by a reference in its topic (rule 12).

A payload log is a chain of pages like a topic's, under the *topic leader's* epoch. Its root has the states::

    open ──close the tail──▶ sealed(at) ──append the reference──▶ published(reference) ──▶ dropped

The leader closes the log before it appends the reference. So when a reader sees the reference, the log is
complete. ``at`` is the topic's pointer at the closing: a leader that finds the root *sealed* looks for the
reference behind that id. The leader marks the root *dropped* before it removes the pages. It removes root and heads
after a margin, when no request for the log can be in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.model import LOG_KEY_MAX, LOG_KEY_MIN, POINTER_MAX, LogKey, TopicId, log_key_after
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage import sweep
from broker.storage.entry import Mark
from broker.storage.head import Head
from broker.storage.hold import LogHold
from broker.storage.keys import (
    LogId,
    generation_roots,
    page_key,
    page_of,
    payload_log_of_root,
    payload_root_range,
    root_key,
    space_of,
)
from broker.storage.log import Logs
from broker.storage.marks import Marks, forget_marks
from broker.storage.root import Root, RootState
from broker.storage.table import Cell, Space

ROOTS_AT_ONCE = 500


class LogClosed(Exception):
    """A payload log takes no more messages; ``root`` is its root as it was read."""

    def __init__(self, root: Root) -> None:
        """Keep the root."""
        super().__init__("the payload log is closed")
        self.root = root


class Sealed(NamedTuple):
    """A closed payload log. If ``was_open``, this call closed it, so no reference to it exists."""

    root: Root
    tail: Head | None
    was_open: bool


class PayloadLogs:
    """The payload logs of a store. The holder of a topic's log also writes the topic's payload logs."""

    def __init__(self, logs: Logs, owner: str) -> None:
        """Write payload logs as ``owner``."""
        self._logs = logs
        self._resolver = logs.resolver
        self._owner = owner

    async def open(self, topic: LogHold, number: int) -> LogHold:
        """Return a hold on a payload log under the topic's epoch.

        Raises:
            LogClosed: it is sealed, published or dropped.
            Fenced: another node leads the topic.
            Unavailable, OutcomeUnknown: see Logs.claim.
        """
        log = _log_of(topic, number)
        pauses = self._resolver.pauses()
        while True:
            root, value = await self._logs.stored_root(log)
            if root is not None and root.state is not RootState.OPEN:
                raise LogClosed(root)
            tail = await self._logs.find_tail(log, root)
            if tail is not None:
                if tail.is_closed:
                    closed = root or Root(log.generation, RootState.OPEN)
                    raise LogClosed(closed._replace(state=RootState.SEALED))
                hold = await self._logs.take(log, root, value, tail, self._owner, topic.epoch)
                if topic.is_chained and not hold.head.total:
                    await hold.begin_chain()
                return hold
            await pauses.again()

    async def seal(self, topic: LogHold, number: int) -> Sealed:
        """Close a payload log, even an empty one, and mark its root as sealed.

        Raises:
            Fenced: another node leads the topic.
            Unavailable, OutcomeUnknown: see Logs.claim.
        """
        log = _log_of(topic, number)
        pauses = self._resolver.pauses()
        while True:
            root, value = await self._logs.stored_root(log)
            if root is not None and root.state is not RootState.OPEN:
                tail = await self._logs.find_tail(log, root)
                return Sealed(root, None if tail is None else tail.head, was_open=False)
            closed = await self._logs.close_tail(log, root, self._owner, topic.epoch)
            if closed is not None:
                new = (root or Root(log.generation, RootState.OPEN))._replace(
                    state=RootState.SEALED,
                    at=topic.pointer,
                    epoch=closed.epoch,
                    token=self._resolver.tokens().fresh(),
                )
                if await self._change_root(log, value, new):
                    return Sealed(new, closed, was_open=True)
            await pauses.again()

    async def _change_root(self, log: LogId, value: bytes | None, new: Root) -> bool:
        return await self._resolver.swap(space_of(log), root_key(log), value, roots.encode(new))

    async def mark_published(self, topic: LogHold, number: int, reference: LogKey) -> None:
        """Note the id of the committed reference in the root. Without it a publish searches the reference."""
        await self._replace_root(
            _log_of(topic, number),
            {RootState.SEALED},
            state=RootState.PUBLISHED,
            reference=reference,
        )

    async def drop(self, topic: LogHold, number: int, now_ms: int) -> None:
        """Mark a payload log as dropped, so that ``empty`` may remove its pages.

        Raises:
            Unavailable, OutcomeUnknown: call it again.
        """
        every = {RootState.OPEN, RootState.SEALED, RootState.PUBLISHED}
        await self._replace_root(
            _log_of(topic, number), every, state=RootState.DROPPED, dropped_ms=now_ms
        )

    async def _replace_root(self, log: LogId, states: set[RootState], **fields: object) -> None:
        root, value = await self._logs.stored_root(log)
        if root is None or root.state not in states:
            return
        new = root._replace(token=self._resolver.tokens().fresh(), **fields)  # type: ignore[arg-type]
        await self._change_root(log, value, new)

    # Reading.

    async def root(self, log: LogId) -> Root | None:
        """Return a payload log's root as stored now. Raises Unavailable."""
        return await self._logs.root(log)

    async def is_void(self, log: LogId) -> bool:
        """True if no consumer has seen, or will ever see, the messages of a payload log.

        That is certain if its topic is deleted, and its root, read after that, is *open*. The leader seals
        the root before it appends a reference, and to a deleted topic no reference can be appended.

        Raises:
            Unavailable: storage does not answer.
        """
        topic, _, tail = await self._logs.look(log.topic)
        if topic is None or topic.generation < log.generation:
            return False  # A stale read.
        is_deleted = topic.generation > log.generation or topic.state is RootState.DELETED
        if not (is_deleted or (tail is not None and tail.is_closed)):
            return False
        root = await self.root(log)
        return root is not None and root.state is RootState.OPEN

    async def tail(self, log: LogId, root: Root) -> Head | None:
        """Return the head of a payload log's last page; None: it has no page, or the page is gone."""
        found = await self._logs.find_tail(log, root)
        return None if found is None else found.head

    async def find_mark(self, log: LogId, root: Root, kind: int, key: bytes) -> Mark | None:
        """Return the mark of a key in a closed payload log, from its row or from entries without rows.

        Raises:
            Unavailable: storage does not answer.
        """
        tail = await self.tail(log, root)
        if tail is None:
            return None
        found = await Marks(log, self._resolver, tail.marked).find(kind, key)
        reader = self._logs.reader(log, tail.marked, tail.pointer)
        reader.gathers = False
        while not reader.ended and not found:
            for entry in await reader.next(1 << 20):
                found += [mark for mark in entry.marks if (mark.kind, mark.key) == (kind, key)]
        return found[-1] if found else None

    async def roots(
        self, topic: TopicId, generation: int, through: int, after: int = -1
    ) -> list[tuple[LogId, Root]]:
        """Return payload logs with numbers in ``(after, through]`` with their roots, at most ROOTS_AT_ONCE.

        The two numbers have the same sign, because stages lie behind all transactions.
        """
        found = await self._root_cells(topic, generation, through, after)
        return [(payload_log_of_root(topic, row), roots.decode(cell.value)) for row, cell in found]

    async def _root_cells(
        self, topic: TopicId, generation: int, through: int, after: int
    ) -> list[tuple[bytes, Cell]]:
        if after >= through:
            return []
        low, high = payload_root_range(topic, generation, after + 1, through)
        return await self._resolver.read(
            lambda: self._resolver.table.scan(Space.PAYLOADS, low, high, limit=ROOTS_AT_ONCE)
        )

    async def count_open(self, topic: TopicId, generation: int, logs_max: int) -> int:
        """Return how many payload logs of transactions are open, of the first ``logs_max``. Raises Unavailable."""
        count, after = 0, -1
        for _ in range(0, logs_max, ROOTS_AT_ONCE):
            found = await self._root_cells(topic, generation, POINTER_MAX, after)
            count += sum([roots.state_of(cell.value) is RootState.OPEN for _, cell in found])
            if len(found) < ROOTS_AT_ONCE:
                break
            after = payload_log_of_root(topic, found[-1][0]).number or 0
        return count

    # Removing.

    async def empty(self, log: LogId) -> int:
        """Remove the entries of a payload log if it is dropped; return how many messages were removed."""
        root = await self.root(log)
        if root is None or root.state is not RootState.DROPPED:
            return 0
        went = 0
        for page, _ in await self._pages(log):
            head, turned = await sweep.turn_gone(self._resolver, log, page)
            if head is not None and turned:
                went = max(went, head.total)
        return went

    async def forget(self, log: LogId) -> None:
        """Remove every row of a payload log. It was dropped a margin ago, or its generation is deleted."""
        await forget_marks(self._resolver, log)
        rows = [page_key(log, page) for page, _ in await self._pages(log)]
        # The root goes last: while it exists, the sweeper looks for pages.
        for some in (rows, [root_key(log)]):
            if some:
                await self._resolver.read(
                    lambda some=some: self._resolver.table.delete(Space.PAYLOADS, some)  # type: ignore[misc]
                )

    async def _pages(self, log: LogId) -> list[tuple[LogKey, Head]]:
        found: list[tuple[LogKey, Head]] = []
        low = LOG_KEY_MIN
        while True:
            first, last = page_key(log, low), page_key(log, LOG_KEY_MAX)
            rows = await self._resolver.read(
                lambda first=first, last=last: self._resolver.table.scan(  # type: ignore[misc]
                    Space.PAYLOADS, first, last, limit=ROOTS_AT_ONCE
                )
            )
            found += [(page_of(row), heads.decode(cell.value)) for row, cell in rows]
            if len(rows) < ROOTS_AT_ONCE:
                return found
            low = log_key_after(found[-1][0])

    async def of_generations(self, topic: TopicId, below: int) -> list[LogId]:
        """Return payload logs of generations below ``below``, at most ROOTS_AT_ONCE."""
        if below <= 1:
            return []
        low, high = generation_roots(topic, 1), generation_roots(topic, below)
        found = await self._resolver.read(
            lambda: self._resolver.table.scan(Space.PAYLOADS, low, high, limit=ROOTS_AT_ONCE)
        )
        return [payload_log_of_root(topic, row) for row, _ in found]


def _log_of(topic: LogHold, number: int) -> LogId:
    return LogId(topic.log.topic, topic.log.generation, number)

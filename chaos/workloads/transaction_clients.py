"""Publishers and readers with transactions, which use the client and the transaction service.

A transaction is all or nothing only if the publisher handles failures correctly::

    all acknowledged ─▶ commit ─▶ ok: visible
                          │ ├──▶ not in progress: it timed out; roll back, and it stays invalid
                          │ └──▶ unknown: get a new snapshot, then visible: done; invalid: roll back;
                          │               in progress: commit again
    an error, or a planned undo ─▶ roll back ─▶ True: abort    False: invalidate
    no end at all: the publisher is gone; the service lets the transaction time out
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Protocol

from broker.client import BrokerError, OutcomeUnknown, Published
from broker.model import MessageId, Snapshot
from broker.wire import avro
from chaos.history import Value, snapshot_value
from chaos.transactions_model import Begun, NotInProgress
from chaos.workloads.client_process import ClientProcess, TopicTarget, tell
from chaos.workloads.workload import WorkloadSurroundings

STEPS_MAX: Final = 3
"""The most requests of one transaction, without the references at its end."""
STORED: Final = 0.35
UNDONE: Final = 0.15
GONE: Final = 0.05
ALL: Final = 0.2
NEW_MS: Final = 60_000
LOOKS_MAX: Final = 20
"""How many times a publisher asks for the outcome of a commit at most."""


class WorkloadService(Protocol):
    """A transaction service: the model of a foreign one, or the product's own."""

    async def begin(self) -> Begun:
        """Begin a transaction. Raises BrokerError."""

    async def look(self) -> Snapshot:
        """Return the snapshot of a transaction that begins now. Raises OutcomeUnknown."""

    async def commit(self, pointer: int) -> None:
        """Commit a transaction. Raises NotInProgress, BrokerError."""

    async def abort(self, pointer: int) -> None:
        """Abort a transaction whose writes are rolled back. Raises BrokerError."""

    async def invalidate(self, pointer: int) -> None:
        """Make a transaction invalid, which hides its writes for ever. Raises BrokerError."""


class PublisherTransaction:
    """One transaction of a publisher, with its publishes."""

    def __init__(self, process: ClientProcess, service: WorkloadService, begun: Begun) -> None:
        self.pointer = begun.pointer
        self._process = process
        self._service = service
        self._publisher = process.client.transaction_publisher(begun.pointer, begun.snapshot)
        self._published: list[tuple[TopicTarget, Published]] = []
        self._stored: list[TopicTarget] = []

    async def publish(self, target: TopicTarget) -> None:
        """Publish some messages. Raises BrokerError."""
        process = self._process
        labels = process.labels()
        messages = [process.message(label) for label in labels]
        published = await process.publish(
            target,
            labels,
            pointer=self.pointer,
            publishing=self._publisher.publish(target.id, messages),
        )
        self._published.append((target, published))

    async def store(self, target: TopicTarget) -> None:
        """Store some messages, which ``refer`` publishes at the end. Raises BrokerError."""
        process = self._process
        labels = process.labels()
        messages = [process.message(label) for label in labels]
        asked = {"payloads": labels, "number": self.pointer, "generation": target.generation}
        if target not in self._stored:
            self._stored.append(target)
        with process.asking("store", target.id, asked) as ending:
            await self._publisher.store(target.id, messages)
            ending.ok({"last": ""}, "")

    async def refer(self) -> None:
        """Publish the stored messages. Raises BrokerError."""
        for target in self._stored:
            asked = {"number": self.pointer, "generation": target.generation}
            with self._process.asking("reference", target.id, asked) as ending:
                published = await self._publisher.publish_stored(target.id)
                tell(ending, published)
            self._published.append((target, published))

    async def commit(self) -> None:
        """Commit, and handle a failed or unknown commit. Raises BrokerError if no snapshot tells its outcome.

        A transaction that is still in progress after ``LOOKS_MAX`` commits is left to its time-out.
        """
        for _ in range(LOOKS_MAX):
            try:
                await self._tell("commit", self._service.commit)
            except NotInProgress:
                await self._roll_back()
            except OutcomeUnknown:
                if await self._is_to_be_committed():
                    continue
            return

    async def _is_to_be_committed(self) -> bool:
        """Find the outcome of an unknown commit; roll back an invalid transaction.

        Return True if the transaction is still in progress.
        """
        for _ in range(LOOKS_MAX):
            try:
                snapshot = await self._service.look()
            except OutcomeUnknown:
                await self._process.pause()
                continue
            if snapshot.is_invalid(self.pointer):
                await self._roll_back()
            return not (snapshot.is_visible(self.pointer) or snapshot.is_invalid(self.pointer))
        raise OutcomeUnknown("the outcome of the commit stays unknown")

    async def undo(self) -> None:
        """Roll back, then abort if all messages are rolled back, or else invalidate."""
        complete = await self._roll_back()
        with suppress(BrokerError):
            if complete:
                await self._tell("abort", self._service.abort)
            else:
                await self._tell("invalidate", self._service.invalidate)

    async def _roll_back(self) -> bool:
        """Roll all acknowledged publishes back. The history gets one line for each publish."""
        process = self._process
        with ExitStack() as stack:
            endings = []
            for number, (target, published) in enumerate(self._published):
                assert published.rollback is not None, "published with a pointer"
                rows = avro.decode_publish_response(published.rollback)
                asked: Value = {"pointer": self.pointer, "generation": target.generation}
                asked |= {
                    "first": rows.first.hex(),
                    "last": rows.last.hex() + "f" * 20,
                }  # The suffix includes the stored payloads.
                name = f"{process.name}/{number}"
                endings.append(
                    stack.enter_context(process.asking("rollback", target.id, asked, name))
                )
            complete = await self._publisher.rollback()
            for ending in endings:
                if complete:
                    ending.ok({})
                else:
                    ending.unknown("the rollback may be incomplete")
        return complete

    async def _tell(self, op: str, call: Callable[[int], Awaitable[None]]) -> None:
        with self._process.asking(op, None, {"pointer": self.pointer}) as ending:
            await call(self.pointer)
            ending.ok({})


async def begin(process: ClientProcess, service: WorkloadService) -> Begun:
    """Begin a transaction. Raises BrokerError."""
    with process.asking("begin", None, {}) as ending:
        begun = await service.begin()
        ending.ok({"pointer": begun.pointer, "snapshot": snapshot_value(begun.snapshot)})
    return begun


async def publisher(
    around: WorkloadSurroundings,
    name: str,
    targets: Sequence[TopicTarget],
    service: WorkloadService,
    stop: asyncio.Event,
) -> None:
    """Publish in one transaction after another, each over some of the topics."""
    async with ClientProcess(around, name) as process:
        while not stop.is_set():
            with suppress(BrokerError):
                begun = await begin(process, service)
                await _one(process, targets, PublisherTransaction(process, service, begun))
            await process.pause()


async def _one(
    process: ClientProcess, targets: Sequence[TopicTarget], transaction: PublisherTransaction
) -> None:
    chance = process.around.chance
    try:
        for _ in range(chance.randint(1, STEPS_MAX)):
            target = chance.choice(targets)
            if chance.random() < STORED:
                await transaction.store(target)
            else:
                await transaction.publish(target)
            await process.pause(process.around.scale.pause_s / 4)
        await transaction.refer()
    except BrokerError:
        await transaction.undo()
        return
    end = chance.random()
    if end < UNDONE:
        await transaction.undo()
    elif end >= UNDONE + GONE:
        await transaction.commit()


async def follower(
    around: WorkloadSurroundings, name: str, target: TopicTarget, service: WorkloadService
) -> None:
    """Consume page by page, each page in its own transaction."""
    async with ClientProcess(around, name) as process:
        place: MessageId | None = None
        while True:
            with suppress(BrokerError):
                begun = await begin(process, service)
                page = await process.poll(
                    target,
                    place,
                    cursor=name,
                    limit=around.scale.page_messages_max,
                    wait_s=around.chance.choice((None, around.scale.wait_s)),
                    snapshot=begun.snapshot,
                )
                place = page[-1].id if page else place
                await service.commit(begun.pointer)
            await process.pause()


async def auditor(
    around: WorkloadSurroundings, name: str, target: TopicTarget, service: WorkloadService
) -> None:
    """Read all messages, or the new ones, in one transaction, through any node."""
    node = around.chance.choice([None, *around.nodes])
    async with ClientProcess(around, name, node=node) as process:
        while True:
            with suppress(BrokerError):
                begun = await begin(process, service)
                is_all = around.chance.random() < ALL
                start = None if is_all else around.clock.now_ms() - NEW_MS
                await process.poll(target, start, snapshot=begun.snapshot)
                await service.commit(begun.pointer)
            await process.pause(5 * around.scale.pause_s)

"""Publish references: the messages stored in payload logs become part of the topic.

One reference stands for one payload log: that of a transaction, or a stage. A request may publish several references,
in its order, in one append. Their messages become visible together. There are three steps::

    open ──seal──▶ sealed(at) ──append the references──▶ (committed) ──▶ published(log key), lazily

The log is closed first, so that a reader of its reference sees a log that grows no more. A second publish of the same
logs finds them *published*, and returns the same answer as the first. After a crash between the steps it finds them
*sealed*. Then it searches the topic behind ``at`` for the references before it appends any. References of one list
are appended together, so the topic has all of them or none, without another message between. Else this list was never
published: the publish is refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from broker.errors import (
    BrokerError,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    TransactionTooOld,
    Unavailable,
)
from broker.model import LogKey, log_key_after
from broker.shield import begin, result_within
from broker.storage.hold import LogHold
from broker.storage.payloads import Sealed
from broker.storage.root import Root, RootState
from broker.topics import stages
from broker.topics.effects import named, refuse_other, rolled_back
from broker.topics.keyed_log import KeyedLog
from broker.topics.log_keys import is_run
from broker.topics.overdue import in_time, joined_in_time
from broker.topics.settings import PublishedIds
from broker.topics.surroundings import Surroundings
from broker.topics.write import Write

AT_ONCE: Final = 32
"""The payload logs that are changed at the same time."""

Numbers = tuple[int, ...]
"""Numbers of payload logs: write pointers, or stages (negative)."""
Result = TypeVar("Result")


class _UnderWay(NamedTuple):
    numbers: Numbers
    pointer: int | None
    task: asyncio.Task[PublishedIds]


class References:
    """Publishes references under one hold.

    ``retire`` waits until the writer of a payload log has ended; ``guarded`` makes a change under the hold.
    """

    def __init__(
        self,
        around: Surroundings,
        messages: KeyedLog,
        *,
        retire: Callable[[int], Awaitable[None]],
        guarded: Callable[[Awaitable[Sealed]], Awaitable[Sealed]],
    ) -> None:
        """Append references to the log that ``messages`` writes to."""
        self._around = around
        self._messages = messages
        self._hold: LogHold = messages.writer.hold
        self._retire = retire
        self._guarded = guarded
        self._under_way: dict[int, _UnderWay] = {}
        self._note_tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Return whether a publish or a note is in progress."""
        return bool(self._under_way or self._note_tasks)

    def tasks(self) -> set[asyncio.Task[PublishedIds] | asyncio.Task[None]]:
        """Return the publishes and notes in progress."""
        return {*(work.task for work in self._under_way.values()), *self._note_tasks}

    def of(self, number: int) -> asyncio.Task[PublishedIds] | None:
        """Return the task that is publishing a payload log, if any."""
        work = self._under_way.get(number)
        return None if work is None else work.task

    async def publish(self, numbers: Numbers, write: Write) -> PublishedIds:
        """Append the references of payload logs with ``write``. A repetition gets the same answer.

        Raises:
            TransactionTooOld: a transaction's payloads were dropped already.
            PayloadsSealed: a stage is too old, was swept, or was published in another list.
            AlreadyPublished: they were published in another transaction, or rolled back.
            Overloaded, Unavailable: the deadline passed before the append.
            OutcomeUnknown: the deadline passed while the same publish was in progress.
        """
        clock = self._around.clock
        while others := {self._under_way[n] for n in numbers if n in self._under_way}:
            if [other[:2] for other in others] == [(numbers, write.pointer)]:
                del others  # See ``shield``.
                return await joined_in_time(clock, write.deadline, self._under_way[numbers[0]].task)
            async with in_time(clock, write.deadline):
                await asyncio.wait({other.task for other in others})
        publishing = self._publish(numbers, write)
        self._under_way.update(
            dict.fromkeys(
                numbers,
                _UnderWay(
                    numbers,
                    write.pointer,
                    begin(publishing, lambda: self._publish_ended(numbers)),
                ),
            )
        )
        left_s = max(write.deadline - clock.monotonic(), 0.0)
        return await result_within(
            self._under_way[numbers[0]].task, left_s, lambda: _refuse_unless_appending(write)
        )

    def _publish_ended(self, numbers: Numbers) -> None:
        for number in numbers:
            del self._under_way[number]

    async def _publish(self, numbers: Numbers, write: Write) -> PublishedIds:
        await _for_all(numbers, self._retire)
        if write.deadline <= self._around.clock.monotonic():
            raise Overloaded("The deadline passed in the queue.")
        sealed = await _for_all(numbers, self._seal)
        keys = await self._find_published(numbers, sealed)
        if keys:
            await self._check_effects(numbers, keys, write.pointer)
            count = _messages_of(sealed)
            return PublishedIds(keys[0], keys[-1], write.pointer, replayed=True, messages=count)
        for number in numbers:
            if number < 0 and self._is_over(number):
                raise too_old(number)
        write.refer(
            [
                (number, 0 if tail is None else tail.total, b"" if tail is None else tail.chain)
                for number, (_, tail, _) in zip(numbers, sealed, strict=True)
            ]
        )
        published = await self._messages.write(write)
        self._note_later(numbers, write.ids)
        return published

    async def _seal(self, number: int) -> Sealed:
        if number < 0:
            # Sealing would create a missing log. A missing stage was never begun, or was forgotten.
            root = await self._around.payload_logs.root(self._hold.log._replace(number=number))
            if root is None or (root.state is RootState.OPEN and self._is_over(number)):
                raise too_old(number)
        return await self._guarded(self._around.payload_logs.seal(self._hold, number))

    def _is_over(self, stage: int) -> bool:
        life_ms = self._around.settings.stage_life_s * 1000
        return stages.is_over(stage, self._around.clock, life_ms)

    async def _find_published(self, numbers: Numbers, sealed: Sequence[Sealed]) -> Sequence[LogKey]:
        """Return the keys of the references if they were published before, else an empty list."""
        found: dict[int, LogKey] = {}
        in_doubt: dict[int, LogKey] = {}
        for number, each in zip(numbers, sealed, strict=True):
            root = each.root
            if root.state is RootState.DROPPED:
                raise gone(number)
            if root.state is RootState.PUBLISHED:
                found[number] = root.reference
            elif not each.was_open:
                in_doubt[number] = root.at
        if in_doubt:
            notes = await self._find_references(in_doubt)
            self._note_later(tuple(notes), list(notes.values()))
            found.update(notes)
        keys = [found[number] for number in numbers if number in found]
        if keys and (len(keys) < len(numbers) or not is_run(keys)):
            raise PayloadsSealed(
                f"Some of these stages were published before, in another list: {-next(iter(found))}."
            )
        return keys

    async def check_kept(self, number: int, root: Root) -> None:
        """Raise AlreadyPublished if the payloads of a closed log were published, and rolled back since."""
        if root.state is RootState.DROPPED:
            return  # They have expired.
        keys = await self._find_published((number,), [Sealed(root, None, was_open=False)])
        for key, theirs, is_rolled_back in (
            await self._hold.effects(keys[0], keys[0]) if keys else ()
        ):
            if is_rolled_back:
                raise rolled_back(name_of(number), theirs, named(key, key))

    async def _check_effects(
        self, numbers: Numbers, keys: Sequence[LogKey], pointer: int | None
    ) -> None:
        """Raise AlreadyPublished if a reference belongs to another transaction, or was rolled back (rule 9).

        A reference that has expired is not checked: no consumer sees its messages in either transaction.
        """
        number_of = dict(zip(keys, numbers, strict=True))
        for key, theirs, is_rolled_back in await self._hold.effects(keys[0], keys[-1]):
            what, ids = name_of(number_of[key]), named(key, key)
            refuse_other(what, theirs, pointer, ids)
            if is_rolled_back:
                raise rolled_back(what, theirs, ids)

    async def _find_references(self, wanted: dict[int, LogKey]) -> dict[int, LogKey]:
        """Search for references that a crash left without notes, behind the topic's pointer when they were sealed.

        Raises:
            OutcomeUnknown: a reference may have expired meanwhile, so the search can't tell.
        """
        hold, at = self._hold, min(wanted.values())
        through = hold.pointer
        found: dict[int, LogKey] = {}
        for page, head in await hold.chain(log_key_after(at), through):
            reader = self._around.logs.reader(hold.log, at, through)
            for entry in await reader.page_entries(page, head):
                if entry.is_reference and entry.number in wanted:
                    found.setdefault(entry.number, entry.first)
            if len(found) == len(wanted):
                return found
        if hold.root.floor > log_key_after(at):  # It may have risen during the search.
            raise OutcomeUnknown("It can't be known any more whether the payloads were published.")
        return found

    def _note_later(self, numbers: Numbers, keys: Sequence[LogKey]) -> None:
        # The note only saves a search: without it, a second publish searches for the reference.
        task = asyncio.ensure_future(self._note(dict(zip(numbers, keys, strict=True))))
        self._note_tasks.add(task)
        task.add_done_callback(self._note_tasks.discard)

    async def _note(self, keys: dict[int, LogKey]) -> None:
        async def note(number: int) -> None:
            await self._around.payload_logs.mark_published(self._hold, number, keys[number])

        try:
            await _for_all(tuple(keys), note)
        except BrokerError:
            self._around.metrics.events.add("reference_note_failed")


def _refuse_unless_appending(write: Write) -> None:
    """Refuse a request whose deadline has passed, and see that it is not appended later.

    A payload log that is being closed is closed nevertheless: a repetition finds it so.
    """
    if not write.references:
        write.deadline = -math.inf
        raise Unavailable("The request's deadline passed before the payloads were closed.")


async def _for_all(numbers: Numbers, work: Callable[[int], Awaitable[Result]]) -> list[Result]:
    """Run ``work`` for all numbers, some at a time, and return the results. No call is cancelled halfway.

    Raises:
        BrokerError: the first failure; later numbers are not begun.
    """
    results: list[Result] = []
    for first in range(0, len(numbers), AT_ONCE):
        some = map(work, numbers[first : first + AT_ONCE])
        outcomes = await asyncio.gather(*some, return_exceptions=True)
        failed = next((each for each in outcomes if isinstance(each, BaseException)), None)
        if failed is not None:
            try:
                raise failed
            finally:
                del failed, outcomes  # The error's traceback keeps this frame.
        results.extend(cast("list[Result]", outcomes))
    return results


def _messages_of(sealed: Sequence[Sealed]) -> int | None:
    """Return the number of messages in closed payload logs; None if one of the logs was removed."""
    tails = [each.tail for each in sealed]
    return None if None in tails else sum(tail.total for tail in tails if tail is not None)


def name_of(number: int) -> str:
    """Return the words that name a payload log in an error."""
    return f"Stage {-number}" if number < 0 else f"The reference of transaction {number}"


def too_old(stage: int) -> PayloadsSealed:
    """Return the refusal of a stage that was swept, or soon will be."""
    return PayloadsSealed(f"Stage {-stage} is too old, or was never begun. Begin a new one.")


def gone(number: int) -> BrokerError:
    """Return the refusal of payloads that were dropped."""
    if number < 0:
        return too_old(number)
    return TransactionTooOld(f"The payloads of transaction {number} have expired.")


def closed(number: int, root: Root) -> BrokerError:
    """Return the refusal of a store into a closed payload log."""
    if root.state is RootState.DROPPED:
        return gone(number)
    if number < 0:
        return PayloadsSealed(
            f"Stage {-number} was published: nothing can be added. Begin a new one."
        )
    return PayloadsSealed(
        f"The payloads of transaction {number} were published: nothing can be added. "
        "Store before you publish, or publish the rest as messages of the transaction."
    )

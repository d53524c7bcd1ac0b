"""Write to one log under idempotency keys: a message log, or a payload log.

A repetition joins the request of the same key that is in progress, and does not run beside it. An answered key is
found in memory, or by its mark in storage (dedupe.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from broker.long_work import ASIDE_BYTES_MIN, ASIDE_ITEMS_MIN, aside, run_paced, soon
from broker.model import LOG_KEY_MIN, PublishRequest
from broker.shield import begin, result_of
from broker.storage.marks import IDEMPOTENCY
from broker.topics.dedupe import KeyedOutcome, check_same_request, key_hash
from broker.topics.effects import POINTER_BYTES, encode_pointer, named, refuse_rolled_back
from broker.topics.overdue import in_time, joined_in_time
from broker.topics.settings import PublishedIds, PublishOptions
from broker.topics.surroundings import Surroundings
from broker.topics.write import KeyMark, Write
from broker.topics.writer import LogWriter


class KeyedLog:
    """Makes requests to one log, and gives each key one answer while its window lasts."""

    def __init__(self, around: Surroundings, writer: LogWriter) -> None:
        """Begin with no key known."""
        self.writer = writer
        pointer = writer.hold.pointer
        self.window = around.mark_window(pointer)
        self._clock = around.clock
        self._answered = around.answered_keys(pointer)
        self._under_way: dict[bytes, tuple[bytes, asyncio.Task[PublishedIds]]] = {}

    @property
    def busy(self) -> bool:
        """Return whether any work is in progress, the search for a key's answer included."""
        return bool(self._under_way) or self.writer.busy

    async def idle(self) -> None:
        """Wait until no work is in progress."""
        while self.busy:
            tasks = {task for _, task in self._under_way.values()}
            if tasks:
                await asyncio.wait(tasks)
            await self.writer.idle()

    async def expire_keys(self) -> None:
        """Forget the answers whose window has passed, also if no further key comes. The sweeper calls this."""
        await run_paced(self._answered.expire(self.window.passed()))

    def forget(self) -> None:
        """Forget all answers: the hold is done, or another memory begins."""
        soon(self.forgetting())

    def forgetting(self) -> Iterator[None]:
        """Forget all answers from now on; each step frees one."""
        return self._answered.close()

    def write(self, write: Write) -> asyncio.Future[PublishedIds]:
        """Queue a request; a key in it is not looked up. Raises as LogWriter.submit does."""
        return self.writer.submit(write)

    async def once(
        self,
        options: PublishOptions,
        body_hash: bytes,
        pointer: int | None,
        work: Callable[[KeyMark], Awaitable[PublishedIds]],
        *,
        messages: int | None,
    ) -> PublishedIds:
        """Do ``work`` under the key of ``options``, or return the answer that the key already has.

        ``work`` gets the mark to put into the batch that it writes. ``messages`` is the number of messages in the
        body, None if the body does not tell; an earlier answer has the same number, because it has the same body.
        A request that comes while its key is in progress joins that work. The work continues if the caller is
        cancelled.

        Raises:
            IdempotencyKeyReused: the key was used before, with another body.
            AlreadyPublished: with another write pointer, or the messages were rolled back.
            Unavailable: storage does not answer before the deadline whether the key has an answer.
            OutcomeUnknown: the request of this key that is in progress does not end before this one's deadline.
        """
        assert options.key is not None, "a keyed request has a key"
        hashed = key_hash(options.key)
        if hashed in self._under_way:
            check_same_request(self._under_way[hashed][0], body_hash)
            joined = await joined_in_time(self._clock, options.deadline, self._under_way[hashed][1])
            return joined._replace(replayed=True)
        mark = (hashed, body_hash)
        before = PublishedIds(LOG_KEY_MIN, LOG_KEY_MIN, pointer, replayed=True, messages=messages)
        answering = self._answer_once(mark, before, work, options)
        self._under_way[hashed] = body_hash, begin(answering, lambda: self._under_way.pop(hashed))
        return await result_of(self._under_way[hashed][1])

    async def _answer_once(
        self,
        mark: KeyMark,
        before: PublishedIds,
        work: Callable[[KeyMark], Awaitable[PublishedIds]],
        options: PublishOptions,
    ) -> PublishedIds:
        hashed, body_hash = mark
        answer = await self._find_answer(hashed, options)
        if answer is not None:
            async with in_time(self._clock, options.deadline):
                await self._check_effect(answer, body_hash)
            return before._replace(first=answer.first, last=answer.last)
        published = await work(mark)
        if published.replayed:
            return published  # The effect is that of another request: this key left no mark.
        answer = KeyedOutcome(published.first, published.last, body_hash)
        self._answered.put(hashed, answer, self.window.passed())
        return published

    async def _check_effect(self, answer: KeyedOutcome, body_hash: bytes) -> None:
        """Refuse a repetition of another request, or of one that was rolled back (rule 9)."""
        first, last = answer.first, answer.last
        check_same_request(answer.body_hash, body_hash, named(first, last))
        hold = self.writer.hold
        if hold.log.number is None:  # Payloads are rolled back with their reference alone.
            what = "The request of this Idempotency-Key"
            ids = named(first, last)
            await refuse_rolled_back(hold, what, answer.pointer, first, last, ids)

    async def _find_answer(self, hashed: bytes, options: PublishOptions) -> KeyedOutcome | None:
        passed = self.window.passed()
        answer = self._answered.get(hashed, passed)
        if answer is not None or options.is_fresh or not self._answered.must_look_up(passed):
            return answer
        async with in_time(self._clock, options.deadline):
            found = await self.writer.hold.marks.find(IDEMPOTENCY, hashed)
        if not found or found[-1].first < self.window.passed():
            return None
        return KeyedOutcome(found[-1].first, found[-1].last, found[-1].body)


async def request_hash(request: PublishRequest, options: PublishOptions) -> bytes:
    """Return a hash of a request's meaning, independent of its encoding. Requests under one key must share it.

    Its last bytes are the write pointer.
    """
    count = len(request.payloads)
    if count >= ASIDE_ITEMS_MIN or sum(map(len, request.payloads)) >= ASIDE_BYTES_MIN:
        return await aside(partial(_hash, request, options))
    return _hash(request, options)


def _hash(request: PublishRequest, options: PublishOptions) -> bytes:
    digest = hashlib.sha256(f"{options.ttl_s} ".encode())
    if request.stages:
        digest.update(f"{list(request.stages)} ".encode())
    if request.ttls_s:
        digest.update(f"ttls {list(request.ttls_s)} ".encode())
    if request.attributes:
        digest.update(b"attributes ")
    for part in (*request.attributes, *request.payloads):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()[:-POINTER_BYTES] + encode_pointer(request.pointer)

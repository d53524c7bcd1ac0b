"""Where a subscriber keeps its place: in a named cursor of the broker, or in a store of the caller.

One subscriber at a time holds a named cursor, and moves it. The cursor's ``data`` names the holder. No two clocks are
compared. A subscriber acts by the state of the cursor::

    not held               take it
    held by another        wait; if its version does not change for the holder's ``takeover_s``, take it
    held by this one       write the place; while there is nothing new to write, write the same place periodically

Each write is a put that expects the version that was read. So if two subscribers take a cursor at the same time, one
wins. A holder that paused too long learns of its loss at its next write, which changes nothing. A subscriber loses
the cursor if another one takes it or if an operator moves it. This is not an error: the subscriber starts again at
the top of this list. The next holder handles again the messages whose place was not written. A deleted cursor is an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol, runtime_checkable

from broker.client.cursors import Cursor, CursorCalls
from broker.client.handler import Calling, Work
from broker.client.retrier import Retrier
from broker.errors import BrokerError, CursorMoved, NotFound, OutcomeUnknown, UnavailableError
from broker.model import MessageId, TopicId

BEATS: Final = 4
"""The number of writes of a holder within its ``takeover_s``."""


class CursorLost(Exception):
    """This subscriber does not hold the cursor any more: another one took it, or an operator moved it."""


@runtime_checkable
class PlaceStore(Protocol):
    """A store of the caller that keeps a subscriber's place, and changes it together with the handler's own writes.

    Each method may be asynchronous or not. A method that is not asynchronous runs in the handler's thread.
    """

    def load(self) -> MessageId | Awaitable[MessageId | None] | None:
        """Return the id of the last message that was handled; None if no message was handled."""

    def work(self, after: MessageId) -> Work:
        """Return a context manager around one call of the handler, such as a transaction of a database.

        Its value is the second argument of the handler. If the context ends without an error, it stores ``after`` as
        the place, together with the handler's writes. If it ends with an error, it stores neither. If it finds that
        another program moved the place, it should raise CursorMoved; then the subscriber ends.
        """


class PlaceKeeper(Protocol):
    """Keeps a subscriber's place."""

    async def acquire(self) -> MessageId | None:
        """Return the place as soon as this subscriber holds it. Raises Stopped."""

    def check(self) -> None:
        """Raise CursorLost if this subscriber knows that it does not hold the place any more."""

    def work(self, after: MessageId) -> Callable[[], Work] | None:
        """Return the factory of the context around a call of the handler, or None."""

    async def save(self, after: MessageId | None) -> None:
        """Write the place. Raises CursorLost, CursorMoved."""

    async def release(self, after: MessageId | None) -> None:
        """Write the place, and let other subscribers take it."""

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context in which the place stays held."""


class OwnKeeper:
    """Keeps the place in the caller's store. The store writes the place itself, in its context around the handler."""

    def __init__(self, store: PlaceStore, calling: Calling) -> None:
        """Keep the place in ``store``; ``calling`` runs the store's functions."""
        self._store = store
        self._calling = calling

    async def acquire(self) -> MessageId | None:
        """Load the place."""
        return await self._calling.run(self._store.load)

    def check(self) -> None:
        """Do nothing: the store itself raises CursorMoved."""

    def work(self, after: MessageId) -> Callable[[], Work]:
        """Return the factory of the store's context."""
        return lambda: self._store.work(after)

    async def save(self, after: MessageId | None) -> None:
        """Do nothing: the store has written the place."""

    async def release(self, after: MessageId | None) -> None:
        """Do nothing: the store has written the place."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Do nothing: no subscriber holds a place in a caller's store."""
        yield


class CursorOptions(NamedTuple):
    """Which cursor a subscriber holds, and how.

    ``begin`` returns the place of a cursor that does not exist yet. A holder that does not write for ``takeover_s``
    loses the cursor to the first subscriber that waits for it.
    """

    topic: TopicId
    name: str
    begin: Callable[[], Awaitable[MessageId | None]]
    takeover_s: float


class CursorKeeper:
    """A named cursor, held by one subscriber at a time."""

    def __init__(
        self,
        cursors: CursorCalls,
        retrier: Retrier,
        wanted: CursorOptions,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        """``pause`` waits, and raises Stopped when the subscriber must stop."""
        self._cursors = cursors
        self._retrier = retrier
        self._wanted = wanted
        self._pause = pause
        self._turn = asyncio.Lock()
        """Held during each write, so that one write at a time is in flight."""
        self._data = ""
        self._version: str | None = None
        self._after: MessageId | None = None
        self._written_s = 0.0
        self._lost: Exception | None = None
        self._was_there = False

    # Taking it.

    async def acquire(self) -> MessageId | None:
        """Wait until no other subscriber holds the cursor, take it, and return its place.

        Raises:
            Stopped: the subscriber must stop.
            CursorMoved: the cursor existed and was deleted.
        """
        self._data = _holder_data(self._wanted.takeover_s)
        seen, since_s, failures = "", 0.0, 0
        while True:
            asked_s = _now_s()
            try:
                cursor = await self._read()
                still_s = asked_s - since_s if cursor and cursor.version == seen else 0.0
                if self._may_take(cursor, still_s):
                    return await self._take(cursor)
                failures = 0
            except (UnavailableError, OutcomeUnknown) as error:
                failures += 1
                await self._wait_to_retry(error, failures)
                continue
            except _Raced:
                continue
            assert cursor is not None, "a missing cursor may be taken"
            if cursor.version != seen:
                seen, since_s = cursor.version, _now_s()
            await self._pause(min(_takeover_s(cursor), self._wanted.takeover_s) / BEATS)

    async def _read(self) -> Cursor | None:
        try:
            cursor = await self._cursors.get(self._wanted.topic, self._wanted.name)
        except NotFound:
            if self._was_there:
                raise self._deleted() from None
            return None
        self._was_there = True
        return cursor

    def _may_take(self, cursor: Cursor | None, still_s: float) -> bool:
        """Return whether this subscriber may take a cursor whose version has not changed for ``still_s``.

        It may take a cursor that is missing, one that no subscriber holds, and one whose holder has been silent for
        its ``takeover_s``. It may also take a cursor with its own data: an earlier put of its own got no answer.
        """
        if cursor is None or cursor.data == self._data:
            return True
        takeover_s = _takeover_s(cursor)
        return not takeover_s or still_s >= takeover_s

    async def _take(self, cursor: Cursor | None) -> MessageId | None:
        wanted = self._wanted
        after = await wanted.begin() if cursor is None else cursor.after
        expected = None if cursor is None else cursor.version
        try:
            taken = await self._cursors.put(
                wanted.topic, wanted.name, after, expected=expected, data=self._data
            )
        except CursorMoved as error:
            raise _Raced from error
        self._lost, self._was_there = None, True
        self._note(taken)
        return after

    # Holding it.

    def check(self) -> None:
        """Raise CursorLost or CursorMoved if a write showed that this subscriber does not hold the cursor any more."""
        if self._lost is not None:
            raise self._lost

    def work(self, after: MessageId) -> None:
        """Return None: the place is written after the handler returns."""

    async def save(self, after: MessageId | None) -> None:
        """Write the place, and retry without a time limit.

        Raises:
            Stopped: the place is not written, and the subscriber must stop.
            CursorLost: another subscriber took the cursor, or an operator moved it; nothing was written.
            CursorMoved: the cursor was deleted.
            BrokerError: the broker refused the write for good, or this client was closed.
        """
        failures = 0
        while True:
            try:
                async with self._turn:
                    await self._put(after, self._data)
            except (UnavailableError, OutcomeUnknown) as error:
                failures += 1
                await self._wait_to_retry(error, failures)
            else:
                return

    async def release(self, after: MessageId | None) -> None:
        """Write the place, and mark the cursor as not held. Leave a lost cursor unchanged.

        Raises:
            BrokerError: the write failed; messages handled since the last write may be handled again.
        """
        with contextlib.suppress(CursorLost):
            async with self._turn:
                await self._put(after, "")

    async def _put(self, after: MessageId | None, data: str) -> None:
        """Write the place. The caller holds ``_turn``."""
        self.check()
        wanted = self._wanted
        while True:
            try:
                put = await self._cursors.put(
                    wanted.topic, wanted.name, after, expected=self._version, data=data
                )
            except CursorMoved as moved:
                self._check_refusal(moved)
            else:
                self._note(put)
                return

    def _check_refusal(self, moved: CursorMoved) -> None:
        """After a refused put: adopt the version of an own put that got no answer. Raises CursorLost, CursorMoved."""
        there = moved.cursor
        if there is not None and there["data"] == self._data:
            self._version = there["version"]
            return
        self._lost = self._deleted() if there is None else CursorLost(moved.message)
        raise self._lost

    def _deleted(self) -> CursorMoved:
        topic = f"{self._wanted.topic.namespace}/{self._wanted.topic.topic}"
        return CursorMoved(
            f"Cursor {self._wanted.name} of {topic} was deleted, or the topic was created anew. Start again to "
            "begin with a new one."
        )

    def _note(self, cursor: Cursor) -> None:
        self._version, self._after, self._written_s = cursor.version, cursor.after, _now_s()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Write the place periodically while no other write does, so that waiting subscribers see a live holder."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _beat(self) -> None:
        beat_s = self._wanted.takeover_s / BEATS
        while True:
            left_s = self._written_s + beat_s - _now_s()
            # A sleep can end a tick early; don't sleep again for the rest.
            if left_s > beat_s / 100:
                await asyncio.sleep(left_s)
                continue
            try:
                async with self._turn:
                    await self._put(self._after, self._data)
            except (CursorLost, CursorMoved):
                return  # ``check`` and the next write raise the error.
            except BrokerError as error:
                # If the error persists, the next write raises it.
                self._retrier.tell(error, None)
                await asyncio.sleep(beat_s)

    async def _wait_to_retry(self, error: BrokerError, failures: int) -> None:
        """Wait before the next attempt. Raises Stopped, or ``error`` if the client was closed."""
        if self._retrier.closed:
            raise error
        self._retrier.tell(error, None)
        await self._pause(self._retrier.pause_s(error, failures))


class _Raced(Exception):
    """Another subscriber took the cursor at the same time."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _holder_data(takeover_s: float) -> str:
    """Return the data of this holder: a unique name, and how long it may be silent."""
    holder = f"{socket.gethostname()[:128]} {os.getpid()} {secrets.token_hex(8)}"
    return json.dumps({"holder": holder, "takeover_s": takeover_s})


def _takeover_s(cursor: Cursor) -> float:
    """Return how long a cursor's holder may be silent; 0 if no subscriber holds the cursor."""
    try:
        takeover_s = float(json.loads(cursor.data)["takeover_s"])
    except (ValueError, TypeError, KeyError):
        return 0.0
    return takeover_s if 0 < takeover_s < float("inf") else 0.0

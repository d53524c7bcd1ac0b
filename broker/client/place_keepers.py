"""Where a subscriber keeps its place: in a named cursor at the broker, or in a store of the caller's own.

A named cursor is moved by one subscriber at a time. Its ``data`` says which one holds it; nobody compares clocks::

    not held               take it
    held by another        wait; if its version stands still for the holder's ``takeover_s``, take it
    held by this one       write the place, and while nothing is to be written, the same place now and then

Each of these is a put that expects the version that was read. So of two that take a cursor one wins, and a holder
that slept too long finds out at its next write, which changes nothing. A cursor that is taken away from its
holder, by another or by an operator who moves it, is not an error: the holder goes back to the beginning of
this list, and what it had not written is handled again by the next holder. One that was deleted is an error.
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
"""How often a holder writes within its ``takeover_s``."""


class CursorLost(Exception):
    """The cursor was taken away: this subscriber holds it no more."""


@runtime_checkable
class PlaceStore(Protocol):
    """A store of the caller's own for a subscriber's place, changed together with what the handler does.

    Each method is for asyncio or not, as suits the store. What is for no asyncio runs in the thread of the handler.
    """

    def load(self) -> MessageId | Awaitable[MessageId | None] | None:
        """Return the id of the last message that was handled; None: of none."""

    def work(self, after: MessageId) -> Work:
        """Return a context manager around one call of the handler, such as a transaction of a database.

        What it gives is the handler's second argument. When it ends without an error, ``after`` is the place, and is
        stored together with what was done in it. When it ends with one, neither is. If it finds that the place was
        moved by somebody else it should raise CursorMoved: then the subscriber ends.
        """


class PlaceKeeper(Protocol):
    """Keeps a subscriber's place."""

    async def acquire(self) -> MessageId | None:
        """Return the place, once it is this subscriber's. Raises Stopped."""

    def check(self) -> None:
        """Raise Lost if it is this subscriber's no more, as far as is known."""

    def work(self, after: MessageId) -> Callable[[], Work] | None:
        """Return what makes the work around a call of the handler; None: there is none."""

    async def save(self, after: MessageId | None) -> None:
        """Write the place. Raises Lost, CursorMoved."""

    async def release(self, after: MessageId | None) -> None:
        """Write the place, and let others have it."""

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold on to the place while this lasts."""


class OwnKeeper:
    """The caller's store: it writes the place itself, in the handler's work."""

    def __init__(self, store: PlaceStore, calling: Calling) -> None:
        """Keep both."""
        self._store = store
        self._calling = calling

    async def acquire(self) -> MessageId | None:
        """Load the place."""
        return await self._calling.aside(self._store.load)

    def check(self) -> None:
        """The store itself tells, by CursorMoved."""

    def work(self, after: MessageId) -> Callable[[], Work]:
        """Return what makes the store's work."""
        return lambda: self._store.work(after)

    async def save(self, after: MessageId | None) -> None:
        """It is written already."""

    async def release(self, after: MessageId | None) -> None:
        """It is written already."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """It is nobody's."""
        yield


class CursorOptions(NamedTuple):
    """Which cursor a subscriber holds, and how.

    ``begin`` gives the place where a cursor begins that is not there yet. A holder that does not write for
    ``takeover_s`` has lost it to the first that waits.
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
        """``pause`` waits, and raises Stopped once the subscriber shall stop."""
        self._cursors = cursors
        self._retrier = retrier
        self._wanted = wanted
        self._pause = pause
        self._turn = asyncio.Lock()
        """Held by each write: one is under way at a time."""
        self._data = ""
        self._version: str | None = None
        self._after: MessageId | None = None
        self._written_s = 0.0
        self._lost: Exception | None = None
        self._was_there = False

    # Taking it.

    async def acquire(self) -> MessageId | None:
        """Wait until nobody else holds the cursor, take it, and return its place.

        Raises:
            Stopped: the subscriber shall stop.
            CursorMoved: it was deleted, after it was there.
        """
        self._data = _data(self._wanted.takeover_s)
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
                await self._outlast(error, failures)
                continue
            except _Raced:
                continue
            assert cursor is not None, "one that is not there may be taken"
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
        """Whether nobody holds a cursor that has stood still for so long; what got no answer may be its own."""
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
        """Raise Lost, or CursorMoved, if it is known that the cursor is another's."""
        if self._lost is not None:
            raise self._lost

    def work(self, after: MessageId) -> None:
        """Return None: the place is written after the handler's work."""

    async def save(self, after: MessageId | None) -> None:
        """Write the place, however long that takes.

        Raises:
            Stopped: it is not written, and the subscriber shall stop.
            Lost: another took the cursor, or moved it; nothing was written.
            CursorMoved: it was deleted.
            BrokerError: the broker refused it for good, or this client was closed.
        """
        failures = 0
        while True:
            try:
                async with self._turn:
                    await self._put(after, self._data)
            except (UnavailableError, OutcomeUnknown) as error:
                failures += 1
                await self._outlast(error, failures)
            else:
                return

    async def release(self, after: MessageId | None) -> None:
        """Write the place, and that nobody holds the cursor. A cursor that was lost is left alone.

        Raises:
            BrokerError: it may not be written; what was handled since the last write comes again.
        """
        with contextlib.suppress(CursorLost):
            async with self._turn:
                await self._put(after, "")

    async def _put(self, after: MessageId | None, data: str) -> None:
        """Write the place; it is this call's turn."""
        self.check()
        wanted = self._wanted
        while True:
            try:
                put = await self._cursors.put(
                    wanted.topic, wanted.name, after, expected=self._version, data=data
                )
            except CursorMoved as moved:
                self._judge(moved)
            else:
                self._note(put)
                return

    def _judge(self, moved: CursorMoved) -> None:
        """Take the version of a write of its own that got no answer. Raises Lost, CursorMoved."""
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
        """Write the place now and then while nothing else does, so that those who wait see a holder."""
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
            if left_s > beat_s / 100:  # A part of a clock's tick is no reason to wait.
                await asyncio.sleep(left_s)
                continue
            try:
                async with self._turn:
                    await self._put(self._after, self._data)
            except (CursorLost, CursorMoved):
                return  # ``check`` and the next write tell.
            except BrokerError as error:
                # The next write tells what is wrong, if it still is.
                self._retrier.tell(error, None)
                await asyncio.sleep(beat_s)

    async def _outlast(self, error: BrokerError, failures: int) -> None:
        """Wait before the next attempt. Raises Stopped, or the error if the client was closed."""
        if self._retrier.closed:
            raise error
        self._retrier.tell(error, None)
        await self._pause(self._retrier.pause_s(error, failures))


class _Raced(Exception):
    """Another took the cursor at the same time."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _data(takeover_s: float) -> str:
    """Return what tells a holder from all others, and for how long it may be silent."""
    holder = f"{socket.gethostname()[:128]} {os.getpid()} {secrets.token_hex(8)}"
    return json.dumps({"holder": holder, "takeover_s": takeover_s})


def _takeover_s(cursor: Cursor) -> float:
    """Return how long a cursor's holder may be silent; 0: nobody holds it."""
    try:
        takeover_s = float(json.loads(cursor.data)["takeover_s"])
    except (ValueError, TypeError, KeyError):
        return 0.0
    return takeover_s if 0 < takeover_s < float("inf") else 0.0

"""The claim of a subscriber on its name: a named cursor of the broker, which one subscriber at a time holds.

It has the place, too, unless a store of the caller has that (``place_store``). Then its place only shows the lag.

The cursor's ``data`` names the holder (``tries``). No two clocks are compared. A subscriber acts by the state of the
cursor::

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
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from broker.client.cursors import Cursor, CursorCalls
from broker.client.retrier import Retrier
from broker.client.tries import HolderData, KeptPlace, Taken, read_data
from broker.errors import BrokerError, CursorMoved, NotFound, OutcomeUnknown, UnavailableError
from broker.model import MessageId, TopicId

BEATS: Final = 4
"""The number of writes of a holder within its ``takeover_s``."""


class CursorLost(Exception):
    """This subscriber does not hold the cursor any more: another one took it, or an operator moved it."""


class CursorOptions(NamedTuple):
    """Which cursor a subscriber holds, and how.

    ``begin`` returns the place of a cursor that does not exist yet. A holder that does not write for ``takeover_s``
    loses the cursor to the first subscriber that waits for it. ``messages`` is the largest number of messages that it
    handles between two writes.
    """

    topic: TopicId
    name: str
    begin: Callable[[], Awaitable[MessageId | None]]
    takeover_s: float
    messages: int


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
        self._data = HolderData()
        self._version: str | None = None
        self._place = KeptPlace(None)
        self._suspects = 0
        self._written_s = 0.0
        self._lost: Exception | None = None
        self._was_there = False

    # Taking it.

    async def acquire(self) -> Taken:
        """Wait until no other subscriber holds the cursor, take it, and return its place.

        Raises:
            Stopped: the subscriber must stop.
            CursorMoved: the cursor existed and was deleted.
        """
        self._data = HolderData(_fresh_holder(), self._wanted.takeover_s, self._wanted.messages)
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
            theirs_s = read_data(cursor.data).takeover_s
            await self._pause(min(theirs_s, self._wanted.takeover_s) / BEATS)

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
        if cursor is None:
            return True
        data = read_data(cursor.data)
        if not data.takeover_s or data.holder == self._data.holder:
            return True
        return still_s >= data.takeover_s

    async def _take(self, cursor: Cursor | None) -> Taken:
        wanted = self._wanted
        before = HolderData() if cursor is None else read_data(cursor.data)
        after = await wanted.begin() if cursor is None else cursor.after
        expected = None if cursor is None else cursor.version
        place = KeptPlace(after, before.tried)
        if (
            before.holder != self._data.holder
        ):  # Otherwise an earlier put of this one got no answer.
            self._suspects = before.messages if before.takeover_s else 0
        try:
            taken = await self._cursors.put(
                wanted.topic, wanted.name, after, expected=expected, data=self._text(place)
            )
        except CursorMoved as error:
            raise _Raced from error
        self._lost, self._was_there = None, True
        self._note(taken, place)
        return Taken(place, taken.generation, self._suspects)

    # Holding it.

    def check(self) -> None:
        """Raise CursorLost or CursorMoved if a write showed that this subscriber does not hold the cursor any more."""
        if self._lost is not None:
            raise self._lost

    async def save(self, place: KeptPlace) -> None:
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
                    await self._put(place)
            except (UnavailableError, OutcomeUnknown) as error:
                failures += 1
                await self._wait_to_retry(error, failures)
            else:
                return

    async def release(self, place: KeptPlace) -> None:
        """Write the place, and mark the cursor as not held. Leave a lost cursor unchanged.

        Raises:
            BrokerError: the write failed; messages handled since the last write may be handled again.
        """
        with contextlib.suppress(CursorLost):
            async with self._turn:
                await self._put(place, is_holder=False)

    async def _put(self, place: KeptPlace, *, is_holder: bool = True) -> None:
        """Write the place. The caller holds ``_turn``."""
        self.check()
        wanted = self._wanted
        data = self._text(place) if is_holder else HolderData(tried=place.tried).text()
        while True:
            try:
                put = await self._cursors.put(
                    wanted.topic, wanted.name, place.after, expected=self._version, data=data
                )
            except CursorMoved as moved:
                self._check_refusal(moved)
            else:
                self._note(put, place)
                return

    def _check_refusal(self, moved: CursorMoved) -> None:
        """After a refused put: adopt the version of an own put that got no answer. Raises CursorLost, CursorMoved."""
        there = moved.cursor
        if there is not None and read_data(there["data"]).holder == self._data.holder:
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

    def _text(self, place: KeptPlace) -> str:
        return self._data._replace(tried=place.tried).text()

    def _note(self, cursor: Cursor, place: KeptPlace) -> None:
        self._version, self._place, self._written_s = cursor.version, place, _now_s()

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
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
                    await self._put(self._place)
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


def _fresh_holder() -> str:
    """Return a name that no other holder has."""
    return f"{socket.gethostname()[:128]} {os.getpid()} {secrets.token_hex(8)}"

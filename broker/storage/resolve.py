"""Resolving the outcome of changes: if the store does not tell it, a read does (rule 2 of the design).

A table answers True, False, or not at all. Only True is an outcome. After False the change may have been made
nevertheless, and without an answer it may be made later. Each new head has a token that no other head has, so a
read of the head decides. If no read decides before the deadline, the outcome is OutcomeUnknown.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from broker.clock import Clock
from broker.errors import OutcomeUnknown, Unavailable
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage.head import TOKEN_BYTES, ChangeVerdict, Head, judged
from broker.storage.read_room import ReadRoom
from broker.storage.sealed import SealedPages
from broker.storage.table import HEAD, Cell, NotWritten, Space, Table, TableError, WriteUnknown

NONCE_BYTES: Final = 8
TOKENS_MAX: Final = (1 << 8 * (TOKEN_BYTES - NONCE_BYTES)) - (1 << 20)
"""A hold ends after so many tokens. The tokens that are left are enough for what is in flight."""
PAUSE_S_FIRST: Final = 0.005
PAUSE_S_MAX: Final = 0.5

Answer = TypeVar("Answer")


def random_nonce() -> bytes:
    """Return a random nonce: it is in all tokens of one hold, or in one record, and in no other."""
    return secrets.token_bytes(NONCE_BYTES)


class Tokens:
    """Fresh tokens of one hold: a nonce, and a number that rises."""

    def __init__(self, nonce: bytes) -> None:
        """Begin; ``nonce`` is random."""
        self._nonce = nonce
        self._count = 0

    def fresh(self) -> bytes:
        """Return a token that no head had before."""
        self._count += 1
        return self._nonce + self._count.to_bytes(TOKEN_BYTES - NONCE_BYTES, "big")

    @property
    def are_spent(self) -> bool:
        """True if the hold must end: a topic with a thousand appends a second gets here after 50 days."""
        return self._count >= TOKENS_MAX

    def is_mine(self, token: bytes) -> bool:
        """True if this hold made the token."""
        return token.startswith(self._nonce)


class Pauses:
    """Pauses between the tries of a call: they grow, up to a deadline."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Give a call ``seconds``."""
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._pause_s = 0.0

    async def next(self) -> bool:
        """Wait longer than the last time; the first call does not wait. Return False past the deadline."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            return False
        if self._pause_s:
            await self._clock.sleep(min(self._pause_s, left_s))
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S_FIRST), PAUSE_S_MAX)
        return True

    async def again(self) -> None:
        """Wait before a stale read is repeated. Raises Unavailable past the deadline."""
        if not await self.next():
            raise Unavailable("Storage gave an outdated answer. Try again.")


class Resolver:
    """Calls to a table, each retried and resolved within ``call_s`` seconds."""

    def __init__(
        self,
        table: Table,
        clock: Clock,
        *,
        call_s: float = 20.0,
        nonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        """Call ``table``. Tests give a ``nonce`` to make tokens repeatable."""
        self.table = table
        self.clock = clock
        self.call_s = call_s
        self._nonce = nonce
        self.sealed = SealedPages()
        self.room = ReadRoom()

    def tokens(self) -> Tokens:
        """Return tokens for a new hold, or for one change."""
        return Tokens(self._nonce())

    def pauses(self) -> Pauses:
        """Return the pauses of a call that begins now."""
        return Pauses(self.clock, self.call_s)

    async def read(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Retry a read until the store answers. Raises Unavailable, as a failed read changes nothing."""
        pauses = None
        while True:
            try:
                return await call()
            except TableError as error:
                pauses = pauses or self.pauses()
                if not await pauses.next():
                    raise Unavailable(f"Storage does not answer: {error}") from error

    async def head(self, space: Space, row: bytes) -> Cell | None:
        """Return a row's head as stored now. Raises Unavailable."""
        found = await self.read(lambda: self.table.get(space, row, (HEAD,)))
        return found.get(HEAD)

    async def swap(  # noqa: PLR0913 - As the port.
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        new: bytes,
        puts: Mapping[bytes, bytes] | None = None,
        *,
        deletes: Sequence[bytes] = (),
        clear: bool = False,
    ) -> bool:
        """Change a row to a head with a new token. Return True if it has that head, False if another.

        After False it may have had the new head before the other one.

        Raises:
            Unavailable: certainly not done.
            OutcomeUnknown: no read decided in time.
        """
        cells = {HEAD: new} if puts is None else {HEAD: new, **puts}
        return await self._swapped(
            space,
            row,
            expected,
            new,
            lambda: self.table.change(space, row, expected, cells, deletes, clear=clear),
        )

    async def put(self, space: Space, row: bytes, expected: bytes | None, new: bytes) -> bool:
        """Change a row as ``swap`` does, but return False only if each send was answered with False.

        Raises:
            Unavailable: certainly not done.
            OutcomeUnknown: no read decided in time, or another change may have come after this one.
        """
        is_unanswered = False

        async def change() -> bool:
            nonlocal is_unanswered
            try:
                return await self.table.change(space, row, expected, {HEAD: new})
            except WriteUnknown:
                is_unanswered = True
                raise

        done = await self._swapped(space, row, expected, new, change)
        if not done and is_unanswered:
            raise OutcomeUnknown("Another change came, perhaps after this one.")
        return done

    async def _swapped(
        self,
        space: Space,
        row: bytes,
        expected: bytes | None,
        new: bytes,
        change: Callable[[], Awaitable[bool]],
    ) -> bool:
        async def look() -> ChangeVerdict:
            found = (await self.table.get(space, row, (HEAD,))).get(HEAD)
            value = None if found is None else found.value
            if value == new:
                return ChangeVerdict.APPLIED
            return ChangeVerdict.REPEAT if value == expected else ChangeVerdict.NEVER

        verdict = await self._settled(change, look)
        if verdict is ChangeVerdict.UNKNOWN:
            raise OutcomeUnknown("The broker can't find out in time whether a change was stored.")
        return verdict is ChangeVerdict.APPLIED

    async def append(
        self, space: Space, row: bytes, old: Head, new: Head, cells: Mapping[bytes, bytes]
    ) -> ChangeVerdict:
        """Make a leader's change of its own page. Return APPLIED, LOST, NEVER or UNKNOWN.

        ``cells`` are the entries. To resolve the outcome it reads the head and the last entry.

        Raises:
            Unavailable: certainly not done; the leader may go on.
        """
        before, puts = heads.encode(old), {HEAD: heads.encode(new), **cells}
        last = max(cells) if cells else None
        columns = (HEAD,) if last is None else (HEAD, last)

        async def look() -> ChangeVerdict:
            found = await self.table.get(space, row, columns)
            seen = heads.decode(found[HEAD].value) if HEAD in found else None
            there = found[last].value if last is not None and last in found else None
            entry_epoch = None
            if last is not None and there is not None:
                entry_epoch = epoch_of(there, cells[last], old.epoch)
            return judged(seen, entry_epoch, old, new)

        return await self._settled(lambda: self.table.change(space, row, before, puts), look)

    async def _settled(
        self, change: Callable[[], Awaitable[bool]], look: Callable[[], Awaitable[ChangeVerdict]]
    ) -> ChangeVerdict:
        """Send a change, and retry it, until a read shows its outcome or the time is over (UNKNOWN)."""
        pauses = self.pauses()
        in_doubt = False
        while True:
            done = await self._send(change, in_doubt=in_doubt)
            if done:
                return ChangeVerdict.APPLIED
            if done is False and not in_doubt and self.table.keeps_order:
                return ChangeVerdict.NEVER
            in_doubt = True
            verdict = await self._read_verdict(look)
            while verdict is ChangeVerdict.STALE:
                if not await pauses.next():
                    return ChangeVerdict.UNKNOWN
                verdict = await self._read_verdict(look)
            if verdict is not ChangeVerdict.REPEAT:
                return verdict
            if not await pauses.next():
                return ChangeVerdict.UNKNOWN

    @staticmethod
    async def _send(change: Callable[[], Awaitable[bool]], *, in_doubt: bool) -> bool | None:
        """Send a change once. Return the table's answer, or None if there is none.

        False and None prove nothing about an earlier send of the same change.

        Raises:
            Unavailable: it was not sent, now or before.
        """
        try:
            return await change()
        except NotWritten as error:
            if not in_doubt:
                raise Unavailable(f"Storage does not answer: {error}") from error
        except Unavailable:
            if not in_doubt:
                raise
        except WriteUnknown:
            pass
        return None

    @staticmethod
    async def _read_verdict(look: Callable[[], Awaitable[ChangeVerdict]]) -> ChangeVerdict:
        try:
            return await look()
        except (TableError, Unavailable):
            return ChangeVerdict.STALE


def epoch_of(there: bytes, mine: bytes, epoch: int) -> int | None:
    """Return the epoch of the entry ``there``, which has the column of the change's entry ``mine``.

    It is None if the entry has this epoch but differs from ``mine``: two holds on one payload log can have the
    same epoch, their topic leader's, and give the same ids.
    """
    if there == mine:
        return epoch
    entry = entries.decode(there)
    return None if entry.epoch == epoch and not entry.is_stub else entry.epoch

"""Changes whose outcome is found out: where a store did not say, a reading does (rule 2 of the design).

A table says True, False or nothing. False and nothing are not yet outcomes: a change that was made may be
told as False, one that was not may be made later. Each writer's head has a token that no other head has,
so a reading decides. Without a decision before the deadline the outcome is OutcomeUnknown.
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
from broker.storage.sealed import SealedPages
from broker.storage.table import HEAD, Cell, NotWritten, Space, Table, TableError, WriteUnknown

NONCE_BYTES: Final = 8
PAUSE_S_FIRST: Final = 0.005
PAUSE_S_MAX: Final = 0.5

Answer = TypeVar("Answer")


def random_nonce() -> bytes:
    """Return the part of a hold's tokens that no other hold has."""
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

    def is_mine(self, token: bytes) -> bool:
        """True if a token is of this hold."""
        return token.startswith(self._nonce)


class Pauses:
    """Pauses that grow, up to a deadline."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Give a call ``seconds``."""
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._pause_s = 0.0

    async def next(self) -> bool:
        """Wait a little longer than the last time, at first not at all; False past the deadline."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            return False
        if self._pause_s:
            await self._clock.sleep(min(self._pause_s, left_s))
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S_FIRST), PAUSE_S_MAX)
        return True


class Resolver:
    """Calls of a table, repeated and resolved within ``call_s`` seconds each."""

    def __init__(
        self,
        table: Table,
        clock: Clock,
        *,
        call_s: float = 20.0,
        nonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        """Ask ``table``. ``nonce`` makes tokens repeatable where a test needs that."""
        self.table = table
        self.clock = clock
        self.call_s = call_s
        self._nonce = nonce
        self.sealed = SealedPages()

    def tokens(self) -> Tokens:
        """Return tokens for a new hold, or for one change."""
        return Tokens(self._nonce())

    def pauses(self) -> Pauses:
        """Return the pauses of a call that begins now."""
        return Pauses(self.clock, self.call_s)

    async def read(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a reading until it is answered. Raises Unavailable: readings leave nothing behind."""
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
        """Change a row whose new head has a fresh token; True if it is there, False if another is.

        Raises:
            Unavailable: certainly not done.
            OutcomeUnknown: neither could be found out in time.
        """
        cells = {HEAD: new} if puts is None else {HEAD: new, **puts}

        async def look() -> ChangeVerdict:
            found = (await self.table.get(space, row, (HEAD,))).get(HEAD)
            value = None if found is None else found.value
            if value == new:
                return ChangeVerdict.APPLIED
            return ChangeVerdict.REPEAT if value == expected else ChangeVerdict.NEVER

        verdict = await self._settled(
            lambda: self.table.change(space, row, expected, cells, deletes, clear=clear), look
        )
        if verdict is ChangeVerdict.UNKNOWN:
            raise OutcomeUnknown("Whether a change was stored can't be found out in time.")
        return verdict is ChangeVerdict.APPLIED

    async def append(
        self, space: Space, row: bytes, old: Head, new: Head, cells: Mapping[bytes, bytes]
    ) -> ChangeVerdict:
        """Make a leader's change of its own page; APPLIED, LOST, NEVER or UNKNOWN.

        ``cells`` are the entries; the last one decides, with the head.

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
        """Make a change until a reading tells what became of it, or the time is over (UNKNOWN)."""
        pauses = self.pauses()
        doubt = False
        while True:
            done = await self._sent(change, in_doubt=doubt)
            if done:
                return ChangeVerdict.APPLIED
            if done is False and not doubt and self.table.keeps_order:
                return ChangeVerdict.NEVER
            doubt = True
            verdict = await self._looked(look)
            while verdict is ChangeVerdict.STALE:
                if not await pauses.next():
                    return ChangeVerdict.UNKNOWN
                verdict = await self._looked(look)
            if verdict is not ChangeVerdict.REPEAT:
                return verdict
            if not await pauses.next():
                return ChangeVerdict.UNKNOWN

    @staticmethod
    async def _sent(change: Callable[[], Awaitable[bool]], *, in_doubt: bool) -> bool | None:
        """Send a change; True if it is made, None without an answer.

        A change that was sent before may be made, whatever this says.

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
    async def _looked(look: Callable[[], Awaitable[ChangeVerdict]]) -> ChangeVerdict:
        try:
            return await look()
        except (TableError, Unavailable):
            return ChangeVerdict.STALE


def epoch_of(there: bytes, mine: bytes, epoch: int) -> int | None:
    """Return the epoch of an entry that is in a change's place; None: it is of this epoch, but another.

    Two holds on one payload log can have one epoch, their topic leader's, and give the same ids.
    """
    if there == mine:
        return epoch
    entry = entries.decode(there)
    return None if entry.epoch == epoch and not entry.is_stub else entry.epoch

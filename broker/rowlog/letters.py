"""List, revive and drop dead letters. Here, too, the list in the index only gives hints: the rows decide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from broker.errors import BadRequest, NotFound
from broker.rowlog import execution_state
from broker.rowlog.attempt import Attempts
from broker.rowlog.cell_keys import Entry
from broker.rowlog.entries import Entries
from broker.rowlog.execution_state import Gone, Standing
from broker.rowlog.index import Index
from broker.rowlog.meta import Meta
from broker.rowlog.rows import Message, Rows
from broker.rowlog.setup import Setup

LISTED_MAX: Final = 1_000


class DeadLetter(NamedTuple):
    """A dead message: its subscription, its number of tries, and why the last try failed."""

    subscription: str
    message: Message
    tries: int
    reason: str
    held: bool
    """True if it is held: not dead itself, but dead for an earlier subscription."""

    @property
    def place(self) -> str:
        """Its row and the number of its message, for people."""
        return f"{self.message.row.decode(errors='backslashreplace')}:{self.message.seq}"


class DeadLetters:
    """The dead letters of one rowlog."""

    def __init__(
        self,
        attempts: Attempts,
        messages: Rows,
        meta: Meta,
        index: Index,
        entries: Entries,
    ) -> None:
        """Use the parts of a rowlog."""
        self._attempts = attempts
        self.messages = messages
        self.meta = meta
        self._index = index
        self._entries = entries

    async def chosen(
        self, subscription: str, places: Sequence[str] | None
    ) -> AsyncIterator[DeadLetter]:
        """Yield the letters at the places, in this order; without places all, the oldest first.

        Raises NotFound: one is missing; none was yielded.
        """
        known: dict[str, DeadLetter] = {}
        last = None
        while letters := await self.listed(subscription, LISTED_MAX, last):
            last = letters[-1]
            for letter in letters:
                if places is None:
                    yield letter
                elif letter.place in places:
                    known[letter.place] = letter
        for place in places or ():
            if place not in known:
                raise NotFound(f"There is no dead letter {place}.")
        for place in places or ():
            yield known[place]

    async def listed(
        self, subscription: str, limit: int, after: DeadLetter | None
    ) -> list[DeadLetter]:
        """Return the oldest dead letters of a subscription; ``after``: only those behind it."""
        letters: list[DeadLetter] = []
        last = None
        if after is not None:
            (seq, timestamp), row = after.message.id, after.message.row
            last = Entry(0, subscription, timestamp, seq, row)
        while left := limit - len(letters):
            entries = await self._index.dead(subscription, left, last)
            if not entries:
                break
            last = entries[-1]
            letters += [each for entry in entries if (each := await self._letter(entry))]
        return letters

    async def _letter(self, entry: Entry) -> DeadLetter | None:
        """Return the dead letter of an entry. None: the entry was stale; it is removed."""
        found = await self.messages.one(entry.row, entry.message)
        part = None if found is None else found.state.parts.get(entry.subscription)
        if found is None or part is None or part.standing not in {Standing.DEAD, Standing.HELD}:
            await self._index.unbury([entry])  # The row decides.
            return None
        message = await self._attempts.message(entry.row, found)
        held = part.standing is Standing.HELD
        return DeadLetter(entry.subscription, message, part.tries, part.reason, held)

    async def revive(self, letter: DeadLetter) -> None:
        """Open a dead message again. Later messages of its row may have been processed before it. Raises NotFound."""
        await self._raise(letter, execution_state.revived)

    async def drop(self, letter: DeadLetter) -> None:
        """Drop a dead message: it counts as done. Raises NotFound."""
        await self._raise(letter, execution_state.dropped)

    async def _raise(
        self,
        letter: DeadLetter,
        decide: Callable[[execution_state.State, str, Setup], execution_state.State],
    ) -> None:
        setup, message = await self.meta.fresh(), letter.message
        found = await self.messages.one(message.row, message.id)
        if found is None:
            raise NotFound("This message is finished.")
        if execution_state.is_held(found.state, letter.subscription, setup):
            raise BadRequest(
                "It is held by the dead letter of an earlier subscription: revive that."
            )
        try:
            state, names = await self._entries.reopened(
                message.row, found, lambda now: decide(now, letter.subscription, setup)
            )
        except Gone:
            raise NotFound("This message is no dead letter of the subscription.") from None
        await self._attempts.finished(message.row, found, state)
        for name in names:
            self._entries.wake_for_all(name)

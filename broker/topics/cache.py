"""Keep recent entries in memory, in their stored form: a poll copies slices of them.

A topic's cache is an unbroken run of its newest committed entries: it has everything between its first id and the
pointer. So a reader that starts inside needs no storage. One slot gathers small plain entries that follow each
other. When a reader goes through many of them, the slot joins them once, for all readers.

All caches of a node share one budget in bytes, which evicts the oldest slot of all topics first. Slots of one topic
are admitted in order, so an evicted slot is always the left end of its topic: the run stays unbroken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from typing import Final, cast

from broker.long_work import soon
from broker.model import LOG_KEY_MIN, LogKey, log_key_before
from broker.storage.entry import Entry, merged
from broker.storage.page_entries import joined

SLOT_BYTES: Final = 256
"""The memory of a slot beside its entries."""
SLOT_BYTES_MAX: Final = 64 * 1024
SLOT_ENTRIES_MAX: Final = 1024
SLOTS_AT_ONCE: Final = 256
APART_MAX: Final = 16
"""A reader takes up to this many small entries one by one; a slot joins more of them first."""


class Slot:
    """Plain entries that follow each other, or one entry."""

    __slots__ = ("bytes", "entries", "first", "lasts", "owner")

    def __init__(self, owner: TopicCache, entry: Entry) -> None:
        """Begin with one entry."""
        self.owner = owner
        self.first = entry.first
        self.entries = [entry]
        self.lasts = [entry.last]
        self.bytes = SLOT_BYTES + entry.size

    @property
    def last(self) -> LogKey:
        """Return the last id in it."""
        return self.lasts[-1]

    def fits(self, entry: Entry) -> bool:
        """Return whether this slot may gather an entry."""
        return (
            entry.is_plain
            and self.entries[-1].is_plain
            and self.bytes + entry.size <= SLOT_BYTES_MAX
            and len(self.entries) < SLOT_ENTRIES_MAX
        )

    def add(self, entry: Entry) -> int:
        """Gather an entry; return its size in bytes."""
        self.entries.append(entry)
        self.lasts.append(entry.last)
        self.bytes += entry.size
        return entry.size

    def behind(self, after: LogKey) -> Sequence[Entry]:
        """Return the entries with messages behind an id."""
        place = bisect_right(self.lasts, after)
        if len(self.entries) - place > APART_MAX:
            self.entries = [joined(self.entries)]
            self.lasts = [self.entries[0].last]
            return self.entries
        return self.entries[place:]

    def mark_rolled_back(self, first: LogKey, last: LogKey, pointer: int) -> None:
        """Note that a transaction's messages in a range were rolled back."""
        entry = self.entries[0]
        if entry.pointer == pointer and entry.first <= last and entry.last >= first:
            entry.rolled = merged((*entry.rolled, (first, last)))

    def release(self) -> None:
        """Drop the entries: no reader uses this slot any more."""
        self.entries = []


_GONE: Final = cast("Slot", None)
"""The place of an evicted slot, until the list is cut."""


class CacheBudget:
    """The bytes that all caches of a node share, and the order in which slots are evicted."""

    def __init__(self, bytes_max: int) -> None:
        """Start empty. ``bytes_max`` 0 switches caching off."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._slots: OrderedDict[Slot, None] = OrderedDict()
        self._evicts = False

    def admit(self, slot: Slot) -> None:
        """Count a new slot, and evict the oldest slots while over the bound."""
        self._slots[slot] = None
        self.grow(slot.bytes)

    def grow(self, size: int) -> None:
        """Count more bytes of an admitted slot."""
        self.bytes += size
        if self.bytes > self.bytes_max and not self._evicts:
            self._evicts = True
            soon(self._evict())

    def _evict(self) -> Generator[None, None, None]:
        """Evict the oldest slots while over the bound. Each step evicts one: a large entry may displace very many."""
        while self.bytes > self.bytes_max and self._slots:
            slot, _ = self._slots.popitem(last=False)
            self.bytes -= slot.bytes
            slot.owner.forget_oldest(slot)
            yield
        self._evicts = False

    def withdraw(self, slots: list[Slot]) -> Generator[None, None, None]:
        """Drop slots that their topic gave up, and stop counting them. Each step drops one."""
        while slots:
            slot = slots.pop()
            if slot in self._slots:  # Else it was evicted meanwhile.
                del self._slots[slot]
                self.bytes -= slot.bytes
                slot.release()
                del slot
                yield


class TopicCache:
    """The newest entries of one topic under one hold. It is empty until the first commit under that hold.

    The cache has every committed message above the id ``after``.
    """

    def __init__(self, budget: CacheBudget, pointer: LogKey) -> None:
        """Start empty at the claim's pointer."""
        self._budget = budget
        self._slots: list[Slot] = []
        self._firsts: list[LogKey] = []
        self._evicted = 0
        """The number of evicted slots at the left that are still in the lists."""
        self._closed = False
        self.after = pointer
        self.pointer = pointer
        self.floor = LOG_KEY_MIN
        """Readers get nothing below this id, as with storage."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that were just committed."""
        if self._closed:
            return
        for entry in entries:
            entry.marks = ()  # Only the index needs them, and it has taken them.
            newest = self._slots[-1] if len(self._slots) > self._evicted else None
            if newest is not None and newest.fits(entry):
                self._budget.grow(newest.add(entry))
            else:
                slot = Slot(self, entry)
                self._slots.append(slot)
                self._firsts.append(slot.first)
                self._budget.admit(slot)
        self.pointer = entries[-1].last

    def forget_oldest(self, slot: Slot) -> None:
        """Evict the oldest slot."""
        if self._closed:
            slot.release()
            return
        assert self._slots[self._evicted] is slot, (
            "slots are evicted in the order in which they came"
        )
        self.after = slot.last
        slot.release()
        # Freed one by one: the cut below would free them all at once.
        self._slots[self._evicted], self._firsts[self._evicted] = _GONE, b""
        self._evicted += 1
        if self._evicted > 64 and self._evicted * 2 > len(self._slots):
            del self._slots[: self._evicted], self._firsts[: self._evicted]
            self._evicted = 0

    def close(self) -> None:
        """Forget everything, and accept no more entries: the hold has ended."""
        self._closed = True
        soon(self._budget.withdraw(self._slots[self._evicted :]))
        self._slots, self._firsts, self._evicted = [], [], 0
        self.after = self.pointer

    def covers(self, after: LogKey, through: LogKey | None) -> bool:
        """Return whether every committed message in ``(after, through]`` is here; None: up to the newest.

        Storage may be ahead by a batch that is committed and not yet added here.
        """
        return after >= self.after and (through is None or through <= self.pointer)

    def entries(self, after: LogKey, through: LogKey) -> Iterator[Entry]:
        """Yield the entries with messages in ``(after, through]``, in order.

        The caller takes each entry before its next await, because slots may be evicted meanwhile.
        """
        after = max(after, log_key_before(self.floor))
        place = max(bisect_left(self._firsts, after, self._evicted) - 1, self._evicted)
        while place < len(self._slots):
            slot = self._slots[place]
            if slot.first > through:
                return
            for entry in slot.behind(after):
                if entry.first > through:
                    return
                yield entry
            place += 1

    def mark_rolled_back(self, first: LogKey, last: LogKey, pointer: int) -> Iterator[None]:
        """Mark messages as rolled back, after storage did; each step handles some slots.

        Slots may come and go between the steps.
        """
        following: LogKey | None = first
        while following is not None:
            following = self._mark_some(following, (first, last), pointer)
            yield

    def _mark_some(
        self, start: LogKey, rolled: tuple[LogKey, LogKey], pointer: int
    ) -> LogKey | None:
        """Mark messages from ``start`` on; return the id where this stopped, None if nothing is left."""
        first, last = rolled
        place = max(bisect_right(self._firsts, start, self._evicted) - 1, self._evicted)
        for slot in self._slots[place : place + SLOTS_AT_ONCE]:
            if slot.first > last:
                return None
            if slot.last >= first:
                slot.mark_rolled_back(first, last, pointer)
        place += SLOTS_AT_ONCE
        return self._firsts[place] if place < len(self._firsts) else None

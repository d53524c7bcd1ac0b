"""Mend the payload logs of one topic in a repaired copy, after its message log.

The reference in the message log says how many messages a payload log had, and that it was closed. If the reference is gone,
its payload log can be published again. If all of a payload log is gone, it counts as dropped: readers pass its reference.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, LogKey
from broker.storage import entry as entries
from broker.storage import head as heads
from broker.storage import root as roots
from broker.storage.columns import REFERENCE, flags_of
from broker.storage.head import PageState
from broker.storage.keys import MARK, ROOT
from broker.storage.leveldb.chain_mend import (
    ChainMend,
    MendedPage,
    RawKeys,
    content_of,
    readable,
)
from broker.storage.leveldb.database import Database
from broker.storage.leveldb.layout import cells_prefix, head_key
from broker.storage.reference import messages_of
from broker.storage.root import Root, RootState
from broker.storage.table import Space

_GENERATION: Final = struct.Struct(">i")
_NUMBER_BYTES: Final = 8
_CLOSED: Final = (RootState.SEALED, RootState.PUBLISHED)


class _KeptReference(NamedTuple):
    key: LogKey
    messages: int


class PayloadsMend:
    """Mends the payload logs of one generation of a topic (its name with a colon at its end)."""

    def __init__(
        self, database: Database, raw: RawKeys, topic: bytes, generation: int, now_ms: int
    ) -> None:
        """Keep the parts."""
        self._database = database
        self._raw = raw
        self._topic = topic
        self._pages_prefix = topic + _GENERATION.pack(generation)
        self._roots_prefix = topic + bytes(4) + ROOT + _GENERATION.pack(generation)
        self._generation = generation
        self._now_ms = now_ms

    def mend(self, floor: LogKey, chain: Sequence[MendedPage]) -> Iterator[str]:
        """Mend each payload log. ``floor`` and ``chain`` are those of the message log. Yield a line for each loss."""
        self._drop_damaged_marks()
        pages = self._pages()
        numbers = pages.keys() | self._root_numbers()
        if not numbers:
            return
        references = self._references(chain)
        for number in sorted(numbers | references.keys()):
            yield from self._mend_log(
                number, pages.get(number, set()), references.get(number), floor
            )

    def _mend_log(
        self, number: bytes, known: set[LogKey], reference: _KeptReference | None, floor: LogKey
    ) -> Iterator[str]:
        root_key = head_key(Space.PAYLOADS, self._roots_prefix + number)
        root = readable(roots.decode, self._database.get(root_key))
        if root is not None and root.state is RootState.DROPPED:
            return
        if not known:
            gone = Root(self._generation, RootState.DROPPED, dropped_ms=self._now_ms)
            self._database.change({root_key: roots.encode(gone)})
            key = LOG_KEY_MIN if reference is None else reference.key
            topic = self._topic[:-1].decode()
            yield f"{topic}: the messages from {key.hex()} to {key.hex()}"
            return
        prefix = self._pages_prefix + number
        last = self._database.get(head_key(Space.PAYLOADS, prefix + max(known)))
        head = readable(heads.decode, last)
        is_closed = reference is not None or (
            head is not None and head.state is PageState.CLOSED
            if root is None
            else root.state in _CLOSED
        )
        mend = ChainMend(self._database, self._raw, Space.PAYLOADS, prefix, begins_at_min=True)
        chain = mend.mend(known, root, PageState.CLOSED if is_closed else PageState.OPEN)
        tail = chain[-1]
        if reference is not None and tail.is_made and tail.head.total < reference.messages:
            cells = tail.head.cells + (tail.head.cells == tail.counted.cells)
            head = tail.head._replace(total=reference.messages, cells=cells)
            key = head_key(Space.PAYLOADS, prefix + tail.key)
            self._database.change({key: heads.encode(head)})
        keys = {page.key for page in chain}
        state = RootState.SEALED if is_closed else RootState.OPEN
        made = root or Root(self._generation, state, tail.head.epoch)
        if reference is not None:
            made = made._replace(state=RootState.PUBLISHED, reference=reference.key)
        elif made.state is RootState.PUBLISHED and made.reference >= floor:
            made = made._replace(state=RootState.SEALED, reference=LOG_KEY_MIN)
        page = made.page if made.page in keys else tail.key
        epoch = min(made.epoch, tail.head.epoch)
        first = made.floor if made.floor in keys else chain[0].key
        made = made._replace(page=page, floor=first, gone=min(made.gone, first), epoch=epoch)
        if made != root:
            self._database.change({root_key: roots.encode(made)})

    def _drop_damaged_marks(self) -> None:
        lead = head_key(Space.PAYLOADS, self._topic + bytes(4) + MARK)
        marks = self._database.keys_of(lead)
        damaged = [key for key in marks if readable(content_of, self._database.get(key)) is None]
        self._database.change({}, deletes=damaged)

    def _pages(self) -> dict[bytes, set[LogKey]]:
        """Return the pages that have a head or entries, or had a head in the original, by number."""
        lead = head_key(Space.PAYLOADS, self._pages_prefix)
        rows = {key[len(lead) :] for key in (*self._database.keys_of(lead), *self._raw.of(lead))}
        row_bytes = len(self._pages_prefix) + _NUMBER_BYTES + LOG_KEY_BYTES
        cells = cells_prefix(Space.PAYLOADS, bytes(row_bytes))[:-row_bytes] + self._pages_prefix
        rest = _NUMBER_BYTES + LOG_KEY_BYTES
        rows |= {key[len(cells) :][:rest] for key in self._database.keys_of(cells)}
        found: dict[bytes, set[LogKey]] = {}
        for row in rows:
            if len(row) == rest:
                found.setdefault(row[:_NUMBER_BYTES], set()).add(row[_NUMBER_BYTES:])
        return found

    def _root_numbers(self) -> set[bytes]:
        lead = head_key(Space.PAYLOADS, self._roots_prefix)
        keys = (*self._database.keys_of(lead), *self._raw.of(lead))
        return {key[len(lead) :] for key in keys if len(key) == len(lead) + _NUMBER_BYTES}

    def _references(self, chain: Sequence[MendedPage]) -> dict[bytes, _KeptReference]:
        found = {}
        for page in chain:
            prefix = cells_prefix(Space.MESSAGES, self._pages_prefix + page.key)
            for key in self._database.keys_of(prefix):
                if not flags_of(key[len(prefix) :]) & REFERENCE:
                    continue
                # The cell of a rollback is no entry.
                entry = readable(entries.decode, self._database.get(key))
                if entry is not None and entry.number is not None and not entry.is_stub:
                    number = entry.number.to_bytes(_NUMBER_BYTES, "big", signed=True)
                    found[number] = _KeptReference(entry.first, messages_of(entry))
        return found

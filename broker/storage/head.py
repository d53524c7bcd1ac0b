"""The head of a page: the one cell that names the page's writer, and the last id in it that counts.

A **page** is a row: one stretch of a log, with a head and entries. A log is the chain of its pages::

    root ─────────────────────────────┐ page
      │ floor                         ▼
      ▼                          ┌─────────┐ sealed  ┌─────────┐ sealed  ┌─────────┐
      first page that may be read│ head    │────────▶│ head    │────────▶│ head    │ open: the tail
                                 │ entries │◀────────│ entries │◀────────│ entries │
                                 └─────────┘   prev  └─────────┘   prev  └─────────┘

    open      takes appends         sealed    the log goes on at the next page, pointer + 1
    closed    the log ends here     packed    sealed, and small entries were joined (page_packer.py)
                                    gone      its entries were removed; the head stays, so that a late
                                              change that creates the page fails

A page's key holds an id at or below all ids in it. A leader's change expects exactly the head that it
confirmed last, and each new head has a new **token**. So a change that arrives late, or twice, fails.

``total`` (messages) and ``bytes`` (of payloads) count the whole log up to ``pointer``, with pages that are
gone. ``cells`` and ``size`` count this page only. In a log with a hash chain (hashchain.py) the head also has
two hashes; its format is then 2.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, LogKey, log_key_after

FORMAT: Final = 1
"""Raised with every change of the encoding; tests keep heads of each older one."""
FORMAT_CHAINED: Final = 2
"""The format of heads with hashes. Heads without hashes keep format 1."""
HASH_BYTES: Final = 32
Hash = bytes
TOKEN_BYTES: Final = 12
"""The hold's nonce (8 bytes) and the number of the change (4 bytes)."""

_FIXED = struct.Struct(f">BBQ{TOKEN_BYTES}s{LOG_KEY_BYTES}sQQQ{LOG_KEY_BYTES}sq{LOG_KEY_BYTES}sHI")
_CRC = struct.Struct(">I")
NO_END: Final = (1 << 63) - 1
NO_TOKEN: Final = bytes(TOKEN_BYTES)


class PageState(enum.IntEnum):
    """The state of a page."""

    OPEN = 1
    SEALED = 2
    CLOSED = 3
    GONE = 4
    PACKED = 5


SEALED_STATES: Final = frozenset({PageState.SEALED, PageState.PACKED})


class Head(NamedTuple):
    """A page's head.

    ``owner`` names the node that writes the page; it is "" after a handoff. ``marked``: marks of ids up to
    this one are on disk. ``first_end_ms``: when the first lifetime of an entry in this page ends; NO_END if
    no entry has one. ``prev``: the key of the page before; LOG_KEY_MIN for a first page. ``before`` and
    ``chain``: the hashes at the end of the page before, and at ``pointer``; b"" in a log without a hash chain.
    """

    epoch: int
    owner: str
    token: bytes
    pointer: LogKey
    state: PageState = PageState.OPEN
    total: int = 0
    bytes: int = 0
    edits: int = 0
    marked: LogKey = LOG_KEY_MIN
    first_end_ms: int = NO_END
    prev: LogKey = LOG_KEY_MIN
    cells: int = 0
    size: int = 0
    before: Hash = b""
    chain: Hash = b""

    @property
    def next(self) -> LogKey:
        """The key of the next page, if this one is sealed. It depends on ``pointer`` alone, not on a clock."""
        return log_key_after(self.pointer)

    @property
    def is_sealed(self) -> bool:
        """True if the log goes on at ``next``."""
        return self.state in SEALED_STATES

    @property
    def is_open(self) -> bool:
        """True if the page takes appends."""
        return self.state is PageState.OPEN


def encode(head: Head) -> bytes:
    """Encode a head. Equal heads must give equal bytes, because the table compares them."""
    hashes = head.before + head.chain
    body = (
        _FIXED.pack(
            FORMAT_CHAINED if hashes else FORMAT,
            head.state,
            head.epoch,
            head.token,
            head.pointer,
            head.total,
            head.bytes,
            head.edits,
            head.marked,
            head.first_end_ms,
            head.prev,
            head.cells,
            head.size,
        )
        + hashes
        + head.owner.encode()
    )
    return body + _CRC.pack(zlib.crc32(body))


def decode(value: bytes) -> Head:
    """Decode a head. Raises StorageCorrupt."""
    body = value[: -_CRC.size]
    if len(body) < _FIXED.size or value[-_CRC.size :] != _CRC.pack(zlib.crc32(body)):
        raise StorageCorrupt("the head of a page fails its checksum")
    at, before, chain = _FIXED.size, b"", b""
    if body[0] == FORMAT_CHAINED and len(body) >= at + 2 * HASH_BYTES:
        before, chain = body[at : at + HASH_BYTES], body[at + HASH_BYTES : at + 2 * HASH_BYTES]
        at += 2 * HASH_BYTES
    elif body[0] != FORMAT:
        raise StorageCorrupt(
            f"a page has format {body[0]}; this release reads {FORMAT} and {FORMAT_CHAINED}"
        )
    (_, state, epoch, token, pointer, total, size_all, edits, marked, end_ms, prev, cells, size) = (
        _FIXED.unpack_from(body)
    )
    return Head(
        epoch=epoch,
        owner=body[at:].decode(),
        token=token,
        pointer=pointer,
        state=PageState(state),
        total=total,
        bytes=size_all,
        edits=edits,
        marked=marked,
        first_end_ms=end_ms,
        prev=prev,
        cells=cells,
        size=size,
        before=before,
        chain=chain,
    )


def taken(head: Head, epoch: int, owner: str, token: bytes) -> Head:
    """Return the head of an open page under its next writer (rule 3b)."""
    return head._replace(epoch=epoch, owner=owner, token=token)


def following(before: Head, key: LogKey, epoch: int, owner: str, token: bytes) -> Head:
    """Return the head of the page after a sealed one, whose key is ``key`` (rules 3c and 4)."""
    return before._replace(
        epoch=epoch,
        owner=owner,
        token=token,
        state=PageState.OPEN,
        first_end_ms=NO_END,
        prev=key,
        cells=0,
        size=0,
        before=before.chain,
    )


def first_page(pointer: LogKey, epoch: int, owner: str, token: bytes) -> Head:
    """Return the head of a log's first page (rule 3c)."""
    return Head(epoch, owner, token, pointer, marked=pointer)


class ChangeVerdict(enum.Enum):
    """The outcome of a change of a page, as far as one read shows it (rule 2)."""

    APPLIED = "applied"
    LOST = "lost"
    """Applied, but another node leads by now."""
    REPEAT = "repeat"
    """Not applied yet: the writer may send the same change again, byte for byte."""
    NEVER = "never"
    """Certainly not applied, now or later: another writer has the log."""
    UNKNOWN = "unknown"
    """The page no longer shows the entry, whether it was applied or not."""
    STALE = "stale"
    """The read was stale: read again."""


def judged(  # noqa: PLR0911 - As many as there are verdicts.
    seen: Head | None, entry_epoch: int | None, old: Head, new: Head
) -> ChangeVerdict:
    """Return the outcome of the change from ``old`` to ``new``, by a read of its page.

    ``seen`` is the head that was read. ``entry_epoch`` is the epoch of the change's last entry, None if the
    entry is not there.
    """
    if seen is None:
        return ChangeVerdict.STALE
    if seen.state in {PageState.GONE, PageState.PACKED}:
        return ChangeVerdict.UNKNOWN
    if seen.token == new.token:
        return ChangeVerdict.APPLIED
    if entry_epoch == old.epoch:
        return ChangeVerdict.LOST
    if seen.token == old.token:
        return ChangeVerdict.REPEAT
    if seen.epoch > old.epoch or seen.state is PageState.CLOSED:
        return ChangeVerdict.NEVER
    return ChangeVerdict.STALE

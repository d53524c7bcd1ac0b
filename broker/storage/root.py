"""The root of a log: the row that holds where the log begins, where its last page is, and whether it exists.

A topic name has one root for all its generations, which is never removed. A payload log has one of its own::

    of a topic         live ──delete──▶ deleted ──create──▶ live, generation + 1
    of a payload log   open ──publish──▶ sealed(at) ──lazily──▶ published(reference) ──▶ dropped

``page`` is a hint: a claim follows ``next`` from it to the tail. Every claim and roll writes it. The write
also proves that the root as read was current, because a change of an outdated root fails. ``floor`` is the
key of a page: no id below it may be read. ``gone`` is a key; every page below it is gone.
"""

from __future__ import annotations

import enum
import struct
import zlib
from functools import lru_cache
from typing import Final, NamedTuple

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, LogKey
from broker.storage.head import NO_TOKEN, TOKEN_BYTES

FORMAT: Final = 1
"""Raised with every change of the encoding; tests keep roots of each older one."""

_FIXED = struct.Struct(
    f">BBiQ{TOKEN_BYTES}s{LOG_KEY_BYTES}s{LOG_KEY_BYTES}s{LOG_KEY_BYTES}s"
    f"{LOG_KEY_BYTES}s{LOG_KEY_BYTES}sq"
)
_CRC = struct.Struct(">I")


class RootState(enum.IntEnum):
    """The state of a log."""

    LIVE = 1
    DELETED = 2
    OPEN = 3
    SEALED = 4
    PUBLISHED = 5
    DROPPED = 6


class Root(NamedTuple):
    """The root of a topic, or of a payload log.

    ``epoch``: the epoch of the last claim, or of the closed tail. For payload logs: ``at`` is the topic's
    pointer when the log was sealed. ``reference`` is the id of its published reference. ``dropped_ms``: when
    the log was dropped.
    """

    generation: int
    state: RootState
    epoch: int = 0
    page: LogKey = LOG_KEY_MIN
    floor: LogKey = LOG_KEY_MIN
    gone: LogKey = LOG_KEY_MIN
    token: bytes = NO_TOKEN
    at: LogKey = LOG_KEY_MIN
    reference: LogKey = LOG_KEY_MIN
    dropped_ms: int = 0


def linked(root: Root, page: LogKey, epoch: int) -> Root:
    """Return a root that names the page of a claim or a roll (rule 3d)."""
    return root._replace(page=page, epoch=epoch)


def encode(root: Root) -> bytes:
    """Encode a root. Equal roots must give equal bytes, because the table compares them."""
    body = _FIXED.pack(
        FORMAT,
        root.state,
        root.generation,
        root.epoch,
        root.token,
        root.page,
        root.floor,
        root.gone,
        root.at,
        root.reference,
        root.dropped_ms,
    )
    return body + _CRC.pack(zlib.crc32(body))


def state_of(value: bytes) -> RootState:
    """Return the state of a root without verifying its checksum: a fast way to count roots.

    Raises:
        StorageCorrupt: the value has no state.
    """
    try:
        return RootState(value[1])
    except (IndexError, ValueError):
        raise StorageCorrupt("the root of a log has no state") from None


@lru_cache(maxsize=4096)
def decode(value: bytes) -> Root:
    """Decode a root. Raises StorageCorrupt."""
    body = value[: -_CRC.size]
    if len(body) != _FIXED.size or value[-_CRC.size :] != _CRC.pack(zlib.crc32(body)):
        raise StorageCorrupt("the root of a log fails its checksum")
    form, state, generation, epoch, token, page, floor, gone, at, reference, dropped_ms = (
        _FIXED.unpack(body)
    )
    if form != FORMAT:
        raise StorageCorrupt(f"a root has format {form}; this release reads {FORMAT}")
    return Root(
        generation=generation,
        state=RootState(state),
        epoch=epoch,
        page=page,
        floor=floor,
        gone=gone,
        token=token,
        at=at,
        reference=reference,
        dropped_ms=dropped_ms,
    )

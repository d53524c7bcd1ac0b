"""Split the acknowledgement of one request into one acknowledgement per message.

The client puts messages of several callers into one request, and each caller needs the ids of its own messages.
The broker answers with the first and the last id of the request. The ids of one request are consecutive: the
counter in an id rises by one, and after its highest value the next millisecond begins. A standalone broker counts
to 65,535 in each millisecond; a node of a cluster owns 256 of these numbers. So the first id, the last id and the
number of messages show which of the two it was, and with it every id::

    first  ms 7, 254   ┐ 4 messages: counts by 256           7 254 | 7 255 | 8 0 | 8 1
    last   ms 8, 1     ┘ 65,284 messages: counts by 65,536   7 254 | … | 7 65535 | 8 0 | 8 1
"""

from __future__ import annotations

import struct
from typing import Final

from broker.client.values import Published
from broker.model import LOG_KEY_BYTES, LOG_KEY_MIN, MessageId, unpack_log_key

_INLINE_ID = struct.Struct(f">qH{len(LOG_KEY_MIN)}x")
_ALL: Final = 1 << 16
_OF_ONE_NODE: Final = 1 << 8


def each_of(published: Published, count: int) -> list[Published]:
    """Return the acknowledgement of each of ``count`` plain messages that were sent in one request.

    If this function can't compute the ids, each acknowledgement has no id.
    """
    rollback, replayed, leader, first, last, *_ = published
    if count == 1 or first is None or last is None:
        return [published] * count
    ids = ids_of(first, last, count)
    if ids is None:
        return [Published(rollback, replayed, leader, None, None, 1)] * count
    return [Published(rollback, replayed, leader, own, own, 1) for own in ids]


def ids_of(first: MessageId, last: MessageId, count: int) -> list[MessageId] | None:
    """Return the ids of ``count`` messages from ``first`` to ``last``; None if the three do not fit together."""
    if first[LOG_KEY_BYTES:] != LOG_KEY_MIN or last[LOG_KEY_BYTES:] != LOG_KEY_MIN:
        return None
    first_ms, first_seq = unpack_log_key(first[:LOG_KEY_BYTES])
    last_ms, last_seq = unpack_log_key(last[:LOG_KEY_BYTES])
    for per_ms in (_ALL, _OF_ONE_NODE):
        base = first_seq - first_seq % per_ms
        start, end = first_seq - base, last_seq - base
        if 0 <= end < per_ms and (last_ms - first_ms) * per_ms + end - start + 1 == count:
            return [
                _INLINE_ID.pack(first_ms + number // per_ms, base + number % per_ms)
                for number in range(start, start + count)
            ]
    return None

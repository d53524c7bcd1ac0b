"""Row keys, byte for byte as in the design documents of CDAP's messaging system.

::

    topic prefix   "ns:topic:"                              (no valid name contains a colon)
    page           prefix | generation int32 | id                               messages
    page           prefix | generation int32 | log number int64 | id            payloads
    generation 0   prefix | int32 0 | kind | rest               rows that hold no message:

        r                                    root of the topic, for all generations   (messages)
        r | generation int32 | number int64  root of a payload log                    (payloads)
        k | generation | [number] | kind | key [16] | first id       a mark of the log

An id is a publish (or write) timestamp as int64 and a sequence number as uint16. All integers are big-endian
two's complement. Log numbers are signed: negative ones (stages) sort after positive ones, and no code depends
on that order. A page of messages and a page of payloads can have the same key, because they lie in different
spaces.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.model import LOG_KEY_BYTES, LogKey, TopicId
from broker.storage.table import Space

ROOT = b"r"
MARK = b"k"

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
GENERATION_MAX = (1 << 31) - 1


class LogId(NamedTuple):
    """One log. If ``number`` is None it is the topic's message log, else a payload log.

    The message logs of all generations of a name share one root. Each has pages of its own.
    """

    topic: TopicId
    generation: int
    number: int | None = None


def space_of(log: LogId) -> Space:
    """Return the space of a log's rows."""
    return Space.MESSAGES if log.number is None else Space.PAYLOADS


def page_key(log: LogId, page: LogKey) -> bytes:
    """Return the row key of a page."""
    return log_prefix(log) + page


def page_of(key: bytes) -> LogKey:
    """Return the id in a page's row key."""
    return key[-LOG_KEY_BYTES:]


def root_key(log: LogId) -> bytes:
    """Return the row key of a log's root: one for all generations of a topic."""
    if log.number is None:
        return topic_prefix(log.topic) + _INT32.pack(0) + ROOT
    return side_prefix(log, ROOT)


def payload_root_range(
    topic: TopicId, generation: int, first: int, last: int
) -> tuple[bytes, bytes]:
    """Return the least and the greatest key of roots of payload logs numbered ``first`` to ``last``."""
    low = root_key(LogId(topic, generation, first))
    return low, root_key(LogId(topic, generation, last))


def generation_roots(topic: TopicId, generation: int) -> bytes:
    """Return the prefix of the roots of one generation's payload logs."""
    return topic_prefix(topic) + _INT32.pack(0) + ROOT + _INT32.pack(generation)


def payload_log_of_root(topic: TopicId, key: bytes) -> LogId:
    """Return the payload log whose root has this key. Raises struct.error if it is no such key."""
    generation, number = struct.unpack(">iq", key[len(topic_prefix(topic)) + 4 + len(ROOT) :])
    return LogId(topic, generation, number)


def log_of_row(topic: TopicId, rest: bytes, *, has_number: bool) -> LogId:
    """Return the log named by the rest of a key behind its prefix or kind.

    The rest begins with the generation and, if ``has_number``, the payload log's number.
    """
    (generation,) = _INT32.unpack_from(rest)
    return LogId(topic, generation, _INT64.unpack_from(rest, 4)[0] if has_number else None)


def mark_prefix(log: LogId) -> bytes:
    """Return the prefix of a log's marks; kind, key and first id follow it."""
    return side_prefix(log, MARK)


def topic_prefix(topic: TopicId) -> bytes:
    """Return the prefix of every key of a topic, in both tables and in the records."""
    return f"{topic.namespace}:{topic.topic}:".encode()


def log_prefix(log: LogId) -> bytes:
    """Return the prefix of the keys of a log's rows; a log key follows it."""
    prefix = topic_prefix(log.topic) + _INT32.pack(log.generation)
    return prefix if log.number is None else prefix + _INT64.pack(log.number)


def side_prefix(log: LogId, kind: bytes) -> bytes:
    """Return the prefix of a log's rows of one kind that are not pages; the rest of the key follows it."""
    prefix = topic_prefix(log.topic) + _INT32.pack(0) + kind
    if log.number is not None:
        return prefix + _INT32.pack(log.generation) + _INT64.pack(log.number)
    return prefix + _INT32.pack(log.generation)


def prefix_end(prefix: bytes) -> bytes:
    """Return the least key above every key that begins with ``prefix``; b"" if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b""

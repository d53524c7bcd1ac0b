"""Places in a topic, and the offsets that Spark keeps for them. Pure.

A place lies between two rows of the topic. The id of the row before it names it, as in the broker's ranges
``(after, through]``. So a query that starts at a message begins behind the row before that message. A reference is
one row, so a place never divides its messages.

Spark keeps offsets in its checkpoint, as JSON. Each names the topic and its generation, because an id has no meaning in
another topic, nor in one that was deleted and created again::

    {"v": 2, "topic": "shop/orders", "generation": 1, "id": "<40 hex>"}      the last id that was read
    {…, "id": "<40 hex>", "init": true}                                      where a new query starts
    {…, "id": "<40 hex>", "from": "<40 hex>"}          the end of the first micro-batch, and its beginning
    {…, "id": "<40 hex>", "beat": 1764000000000}       the end of a heart-beat, and its time in ms since 1970

Spark stores the end of a micro-batch before it runs the batch, but it does not store the start of the first batch.
After a crash it asks for that start again. A start at *latest* would then be a later place, and the query would lose
the messages in between. So the end of the first micro-batch also has its beginning, and the source uses this one. A
heart-beat may be the first micro-batch, too; then ``from`` stands before ``beat``. Spark compares offsets by their
text, so the order of keys is part of the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.errors import BadRequest
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MIN,
    MessageId,
    first_log_key_at,
    log_key_before,
    message_id_from_hex,
)
from broker.places import Place

VERSION: Final = 2
ONE_MS: Final = 1000
"""Times in this module are in microseconds, as in Spark."""

Offset = dict[str, Any]


class SourceOffset(NamedTuple):
    """A place behind the row ``after`` (20 bytes, whose second half is zero).

    If it comes from a time (``is_time``), the query starts at the first existing message from that time on. If it
    comes from an id, the query names a message, which may have expired. ``generation`` is that of the topic to which
    the id belongs; None: any.
    """

    after: MessageId
    is_time: bool = False
    generation: int | None = None

    @classmethod
    def of(cls, identifier: MessageId, generation: int | None = None) -> SourceOffset:
        """Return the place before the message with an id."""
        return cls(log_key_before(identifier[:LOG_KEY_BYTES]) + LOG_KEY_MIN, generation=generation)

    @classmethod
    def at_time(cls, time_us: int) -> SourceOffset:
        """Return the place before the first message that is not older than a time."""
        return cls(
            log_key_before(first_log_key_at(-(-time_us // ONE_MS))) + LOG_KEY_MIN, is_time=True
        )


def offset_at(topic: str, generation: int | None, last: MessageId) -> Offset:
    """Return the offset behind an id of a topic (``namespace/name``)."""
    return {"v": VERSION, "topic": topic, "generation": generation, "id": last.hex()}


def first_offset(topic: str, generation: int | None, start: MessageId) -> Offset:
    """Return the offset from which a new query starts."""
    return {**offset_at(topic, generation, start), "init": True}


def next_offset(
    start: Offset, begin: MessageId, through: MessageId, beat_ms: int | None = None
) -> Offset:
    """Return the end of a micro-batch that Spark starts at ``start``, and that reads ``(begin, through]``.

    ``beat_ms``: the time of the heart-beat at its end, in ms since 1970; None: it has no heart-beat.
    """
    end = offset_at(start["topic"], start["generation"], through)
    if start.get("init"):
        end["from"] = begin.hex()
    if beat_ms is not None:
        end["beat"] = beat_ms
    return end


def beat_ms_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    """Return the time of the heart-beat between two offsets, in ms since 1970; None: there is none."""
    if start == end:
        return None  # This topic had no message; another source of the query had one.
    beat_ms: int | None = end.get("beat")
    return beat_ms


def id_of(offset: Mapping[str, Any]) -> MessageId:
    """Return the id in an offset.

    Raises:
        ValueError: the offset has another version or another format, or it is damaged.
    """
    try:
        is_known = (
            offset["v"] == VERSION
            and isinstance(offset["topic"], str)
            and isinstance(offset["generation"], int | None)
            and isinstance(offset.get("beat", 0), int)
        )
        if is_known:
            message_id_from_hex(str(offset.get("from", offset["id"])))
            return message_id_from_hex(str(offset["id"]))
    except (KeyError, TypeError, BadRequest):
        pass
    raise ValueError(
        f"The checkpoint has the offset {json.dumps(offset)}, which this version of the format tms can't "
        "read: use the version that wrote it, or a new checkpoint."
    )


def place_in(offset: Mapping[str, Any], topic: str) -> Place:
    """Return the id in an offset of a topic (``namespace/name``), with the topic's generation.

    Raises:
        ValueError: the offset has another version, or is of another topic.
    """
    last = id_of(offset)
    if offset["topic"] != topic:
        raise ValueError(
            f"The checkpoint belongs to the topic {offset['topic']}, and the query reads {topic}. An id has no meaning in "
            "another topic: use a new checkpoint."
        )
    return Place(last, offset["generation"])


def range_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[MessageId, MessageId]:
    """Return the range ``(after, through]`` of the micro-batch between two offsets. Raises ValueError."""
    through = id_of(end)
    if start.get("init") and end.get("init"):
        return through, through  # This topic had no message; another source of the query had one.
    if start.get("init") and "from" in end:
        return message_id_from_hex(str(end["from"])), through
    return id_of(start), through

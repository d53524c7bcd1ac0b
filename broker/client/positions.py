"""Places in a topic, as callers name them: a message id or a moment.

::

    id        20 bytes, or their 40 hex digits
    place     an id in one generation of the topic: a Place, or its text <40 hex digits>@<generation>
    moment    a datetime with a time zone, or ms since 1970

A moment stands for the first message that is not older. Message times are whole milliseconds, so a fraction is
rounded up. A datetime without a time zone is refused: it would be another moment on another machine.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, SupportsIndex

from broker.client.values import IdPlace, Start, shown
from broker.errors import BadRequest
from broker.model import (
    LOG_KEY_BYTES,
    LOG_KEY_MAX,
    LOG_KEY_MIN,
    MESSAGE_ID_BYTES,
    MessageId,
    first_log_key_at,
    log_key_before,
)
from broker.moments import checked_ms, datetime_ms
from broker.places import Place

_KINDS: Final = (
    "a message id (20 bytes, or their 40 hex digits), a datetime with a time zone, "
    "or a whole number of ms since 1970"
)


def start_of(place: Start, name: str = "start") -> MessageId | int | None:
    """Return a place in the form of the protocol: an id, a time in ms, or None.

    Args:
        place: the place from the caller.
        name: the caller's name for it, for errors.

    Raises:
        BadRequest: it is not an id, has no time zone, or is out of range.
        TypeError: it has another type.
    """
    if place is None:
        return None
    if isinstance(place, bytes | Place):
        return id_of(place, name)
    if isinstance(place, str):
        try:
            return id_of(place, name)
        except BadRequest as error:
            raise BadRequest(
                f"{error.message} A moment is given as a datetime with a time zone, or in ms since 1970."
            ) from None
    if isinstance(place, datetime):
        return _checked(lambda: datetime_ms(place), name)
    if isinstance(place, bool) or not isinstance(place, SupportsIndex):
        raise TypeError(f"{name}: give {_KINDS}, not {shown(place)}.")
    number = place.__index__()
    return _checked(lambda: checked_ms(number), name)


def generation_in(*places: object) -> int | None:
    """Return the generation that places name; None if none of them names one.

    Raises BadRequest: they name two.
    """
    named = {_generation_of(place) for place in places} - {None}
    if len(named) > 1:
        raise BadRequest("The places are in different generations of the topic.")
    return named.pop() if named else None


def _generation_of(place: object) -> int | None:
    if isinstance(place, str) and "@" in place:
        place = Place.of(place)
    return place.generation if isinstance(place, Place) else None


def id_of(identifier: IdPlace, name: str) -> MessageId:
    """Return a message id as bytes, without its generation (see ``generation_in``). Raises BadRequest, TypeError."""
    if isinstance(identifier, Place):
        return id_of(identifier.id, name)
    if isinstance(identifier, bytes):
        if len(identifier) != MESSAGE_ID_BYTES:
            raise BadRequest(
                f"{name}: a message id has {MESSAGE_ID_BYTES} bytes, not {len(identifier)}."
            )
        return identifier
    if not isinstance(identifier, str):
        raise TypeError(
            f"{name}: give a message id (20 bytes, or their 40 hex digits), not {shown(identifier)}."
        )
    try:
        return Place.of(identifier).id
    except BadRequest as error:
        raise BadRequest(f"{name}: {error.message}") from None


def behind(identifier: MessageId) -> MessageId:
    """Return an id behind all messages of a log key, also behind those of a reference."""
    return identifier[:LOG_KEY_BYTES] + LOG_KEY_MAX


def before(place: MessageId | Place | int) -> MessageId:
    """Return the greatest id below a message, or below all messages of a moment (ms). Reading behind it begins there."""
    if isinstance(place, Place):
        place = place.id
    key = first_log_key_at(place) if isinstance(place, int) else place[:LOG_KEY_BYTES]
    inside = LOG_KEY_MIN if isinstance(place, int) else place[LOG_KEY_BYTES:]
    if inside > LOG_KEY_MIN:
        return key + log_key_before(inside)
    return key + LOG_KEY_MIN if key == LOG_KEY_MIN else log_key_before(key) + LOG_KEY_MAX


def _checked(read: Callable[[], int], name: str) -> int:
    try:
        return read()
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from None

"""Places in a topic, as requests name them, and the generation to which they belong.

::

    id              40 hex digits: the message, in any generation of the topic
    id@generation   the message of this generation; if the topic has another one, the answer is topic_recreated
    time            ms since 1970, or a moment of RFC 3339, in UTC if it names no zone

A reply names the generation of its messages in a header. A request may have the same header, for all its places.
"""

from __future__ import annotations

from broker.errors import BadRequest
from broker.http.reply import Headers
from broker.http.request import Request
from broker.model import MESSAGE_ID_BYTES, MessageId, RowId, timestamp_of
from broker.moments import rfc3339
from broker.operations.replies import End
from broker.places import GENERATION_HEADER, Place, place_of


def shown_id(place: MessageId | RowId) -> str:
    """Return a message id, or that of the message or the reference in a row, as the interface shows it."""
    return place.ljust(MESSAGE_ID_BYTES, b"\0").hex()


def end_of(place: MessageId | RowId | None) -> End | None:
    """Return a message as the end of a topic, by its id or its row; None stays None."""
    return None if place is None else End(id=shown_id(place), time=rfc3339(timestamp_of(place)))


def in_generation(generation: int) -> Headers:
    """Return the header that names the generation of a reply's messages."""
    return ((GENERATION_HEADER, str(generation)),)


def parse_place(name: str, text: str) -> Place | int:
    """Return the place in a text, as ``place_of`` reads it. Raises BadRequest, with the parameter's name."""
    try:
        return place_of(text)
    except BadRequest as error:
        raise BadRequest(f"{name}: {error.message}") from error


def place_in(request: Request, name: str) -> MessageId | int | None:
    """Return the place in a query's parameter; None if it is absent. The request takes the place's generation.

    Raises BadRequest, with the parameter's name.
    """
    text = request.query.get(name)
    if text is None:
        return None
    place = parse_place(name, text)
    return place if isinstance(place, int) else request.id_at(place)


def id_in(request: Request, name: str) -> MessageId | None:
    """Return the message id in a query's parameter; None if it is absent. The request takes the id's generation.

    Raises BadRequest.
    """
    text = request.query.get(name)
    return None if text is None else request.id_at(Place.of(text))

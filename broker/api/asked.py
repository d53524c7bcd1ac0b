"""Read a request: the type of its body, the fields of a JSON body, the places in a topic that it names.

A place in a topic has one of these forms::

    id              40 hex digits: the message, in any generation of the topic
    id@generation   the message of this generation; if the topic has another one, the answer is topic_recreated
    time            ms since 1970, or a moment of RFC 3339, in UTC if it names no zone

A reply names the generation of its messages in a header. A request may have the same header, for all its places.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from broker.errors import BadRequest
from broker.http.budget import BudgetKind
from broker.http.reply import Headers, media_type
from broker.http.request import Request
from broker.long_work import heavy
from broker.model import MESSAGE_ID_BYTES, LogKey, MessageId, Snapshot, timestamp_of
from broker.moments import rfc3339
from broker.operations.media_types import AVRO, AVRO_JSON, JSON, MESSAGES, OCTETS, TEXT
from broker.operations.replies import End
from broker.operations.shapes import Shape, fields_of, forms_of, problem
from broker.places import GENERATION_HEADER, Place, place_of
from broker.wire import Take, free
from broker.wire.jsontext import parse
from broker.wire.transaction import decode_body

# --- The type of a body ---------------------------------------------------------------------------


JSON_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest body in JSON. Without it, a small compressed body could inflate to a very large text that the broker
then refuses."""
_RAW = (TEXT, OCTETS)
_JSONS = (JSON, AVRO_JSON)


def check_coding(headers: Mapping[str, str]) -> None:
    """Refuse a compressed body of an operation that keeps it: a small request would take much memory for ever.

    Raises:
        BadRequest: the body is compressed.
    """
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequest("Properties can't be compressed. Send them without Content-Encoding.")


def bytes_max(headers: Mapping[str, str], most: int | None) -> int | None:
    """Return how many bytes an inflated body may have. ``most`` is the limit of the route."""
    if headers.get("Content-Type") == AVRO or media_type(headers) not in _JSONS:
        return most
    return JSON_BYTES_MAX if most is None else min(most, JSON_BYTES_MAX)


def body_type(headers: Mapping[str, str], takes: Container[str]) -> str:
    """Return the type of a body, of those that an operation takes; TEXT for any body that is one message, as raw bytes.

    ``avro/binary`` is exactly that text, as in the original: no parameters, no other case. JSON and raw bytes are read as
    HTTP says: without regard to case, and with parameters.

    Raises BadRequest for any other type.
    """
    sent = headers.get("Content-Type", "")
    if sent == AVRO or (sent == MESSAGES and sent in takes):
        return sent
    named = media_type(headers)
    if named in _JSONS:
        return named
    raw = TEXT in takes
    if raw and named in _RAW:
        return TEXT
    also = f" {JSON} and {AVRO_JSON} are read, too"
    also += f", and {' or '.join(_RAW)} as one message." if raw else "."
    raise BadRequest(
        f"Only {AVRO} content type is supported, not {sent!a:.80}. "
        f'Add the header "Content-Type: {AVRO}".{also}'
    )


# --- The fields of a JSON body --------------------------------------------------------------------

_AVRO_NAMES: Final = {
    "transactionWritePointer": "write_pointer",
    "startFrom": "start",
    "transaction": "snapshot",
    "rollbackRange": "first_id and last_id",
}
"""Field names of the Avro schemas, and their names in this JSON."""
_MEANT: Final = {
    "payload": "value",
    "data": "value",
    "body": "value",
    "text": "value",
    "from": "start",
}
"""Common other names for a field, spelled too differently for ``get_close_matches``."""


def read_small(body: bytes, shape: Shape, *, bytes_max: int) -> Any:
    """Return the object in a small body. Raises BadRequest, BodyTooLarge."""
    return checked(parse(body, bytes_max=bytes_max), shape)


def checked(value: object, shape: Shape) -> Any:
    """Return a JSON value if it is an object of this shape: a TypedDict, or one of several. Raises BadRequest."""
    forms = forms_of(shape)
    if len(forms) > 1:
        return checked(value, _meant(value, forms))
    (shape,) = forms
    names = tuple(fields_of(shape))
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object with {', '.join(names) or 'no fields'}.")
    refuse_unknown(value, names)
    if found := problem(value, shape):
        raise BadRequest(found)
    return value


def _meant(value: object, forms: Sequence[Shape]) -> Shape:
    """Return the form that has the fields of a value. Raises BadRequest if none has."""
    for form in forms:
        if isinstance(value, dict) and value.keys() == fields_of(form).keys():
            return form
    either = [", ".join(f'"{name}": ...' for name in fields_of(form)) for form in forms]
    raise BadRequest(f"The body must be {' or '.join(f'{{{one}}}' for one in either)}.")


def refuse_unknown(given: Iterable[str], names: Sequence[str], before: str = "") -> None:
    """Raise BadRequest for the first unknown name, and suggest the right one."""
    for name in given:
        if name not in names:
            raise BadRequest(f"{before}{_advice(name, names)}")


def _advice(name: str, names: Sequence[str]) -> str:
    """Return the error text for an unknown name, with the name that was probably meant."""
    shown_name = f"{name!a:.80}"
    if name in _AVRO_NAMES:
        return (
            f"{shown_name} is called {_AVRO_NAMES[name]} in application/json. "
            "Use Avro's names only with Content-Type avro/json."
        )
    meant = _MEANT.get(name)
    near = [meant] if meant in names else get_close_matches(name[:80], names, n=1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    told = f"{shown_name}: there is no such field; {hint} {', '.join(names)}."
    if "messages" in names:
        told += ' To publish a JSON value as one message, put {"json": …} into messages, or send it as text/plain.'
    return told


# --- Places ---------------------------------------------------------------------------------------


def shown_id(place: MessageId | LogKey) -> str:
    """Return a message id, or that of the message or the reference under a log key, as the interface shows it."""
    return place.ljust(MESSAGE_ID_BYTES, b"\0").hex()


def end_of(place: MessageId | LogKey | None) -> End | None:
    """Return a message as the end of a topic, by its id or its log key; None stays None."""
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


# --- Reading a body: a large one in a thread, one at a time for each caller -----------------------

UNCOUNTED_BYTES_MAX: Final = 4 * 1024
"""The items of bodies up to this length are not counted."""
AT_ONCE_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this length are decoded at once. That takes at most 5 ms, and mostly a hundredth of that."""

_Value_co = TypeVar("_Value_co", covariant=True)


class Decoder(Protocol[_Value_co]):
    """A function that decodes a body."""

    def __call__(self, body: bytes, /, *, take: Take) -> _Value_co:
        """Return the value of a body. It calls ``take`` for its items."""


async def read(request: Request, decode: Decoder[_Value_co]) -> _Value_co:
    """Return the value of a request's body. Raises the errors of ``decode``, and those of the budget."""
    body = request.body
    if len(body) <= UNCOUNTED_BYTES_MAX:
        return decode(body, take=free)
    take = partial(request.usage.take, BudgetKind.ITEMS)
    if len(body) <= AT_ONCE_BYTES_MAX:
        return decode(body, take=take)
    return await heavy(request.usage.caller, lambda counted: decode(body, take=counted), take)


async def read_snapshot(request: Request) -> Snapshot:
    """Read a request's body that is a snapshot. Raises BadRequest, BodyTooLarge."""
    return await read(request, decode_body)

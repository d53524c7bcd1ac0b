"""Check JSON bodies against their declarations (``operations.sent``). For a wrong name, the error suggests the right one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final

from broker.errors import BadRequest
from broker.operations.shapes import Shape, fields_of, forms_of, problem
from broker.wire.jsontext import parse

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


def read(body: bytes, shape: Shape, *, bytes_max: int) -> Any:
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

"""The fields of JSON objects that people write, and errors that name what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final

from broker.errors import BadRequest

_AVRO_NAMES: Final = {
    "transactionWritePointer": "write_pointer",
    "startFrom": "start",
    "transaction": "snapshot",
    "rollbackRange": "first_id and last_id",
}
"""Avro's names, and how the same is called here."""
_MEANT: Final = {
    "payload": "value",
    "data": "value",
    "body": "value",
    "text": "value",
    "from": "start",
}
"""Names that say the same, but are spelled too differently to be found as near."""


def record(value: object, known: Sequence[str], told: Sequence[str]) -> dict[str, Any]:
    """Return an object that has no other fields than ``known``. Raises BadRequest, with those in ``told``."""
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object with {', '.join(told)}.")
    refuse_unknown(value, known)
    return value


def refuse_unknown(given: Iterable[str], names: Sequence[str], before: str = "") -> None:
    """Raise BadRequest, with the name that was meant, for one that is not known."""
    for name in given:
        if name not in names:
            raise BadRequest(f"{before}{_advice(name, names)}")


def _advice(name: str, names: Sequence[str]) -> str:
    """Say of an unknown name which one was meant."""
    shown_name = f"{name!a:.80}"
    if name in _AVRO_NAMES:
        return (
            f"{shown_name} is called {_AVRO_NAMES[name]} in application/json. "
            "The names of Avro belong to Content-Type avro/json."
        )
    meant = _MEANT.get(name)
    near = [meant] if meant in names else get_close_matches(name[:80], names, n=1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    told = f"{shown_name}: there is no such field; {hint} {', '.join(names)}."
    if "messages" in names:
        told += " To publish a JSON value as one message, send it as text/plain, or its text as a string in messages."
    return told

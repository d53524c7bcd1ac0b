"""JSON of strangers, read strictly and in bounded memory.

Python's parser is fast, but three things must not pass: names given twice (which one counts?),
numbers that JSON does not have (NaN), and small texts that become large values: an empty list takes
three bytes of text and sixty of memory, a short string not much less.

Every value is the first of an object or a list, or stands behind a comma. So the brackets that open
and the commas outside of strings are at least as many as the values, and are counted before any is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from broker.errors import BadRequest, RequestError

VALUES_MAX: Final = 100_000
"""How many values a text may have where nothing else is said."""

# A string, so that nothing inside it is seen, or what a further value needs.
_STRING_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
_QUOTE = b'"'[0]


def parse(
    body: bytes,
    *,
    values_max: int = VALUES_MAX,
    too_many: type[RequestError] = BadRequest,
    number: Callable[[str], object] | None = None,
) -> object:
    """Return the value that a JSON text says.

    Args:
        body: the text, UTF-8.
        values_max: how many values it may have, those inside of others counted too, and each empty
            list or object as two.
        too_many: what is raised if it has more.
        number: makes a value of the text of a number; else they become int and float.

    Raises:
        BadRequest: it is no JSON.
    """
    if _has_more_values(body, values_max):
        raise too_many(f"The body has more than {values_max} JSON values.")
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_int=number,
            parse_float=number,
        )
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None


def _has_more_values(body: bytes, values_max: int) -> bool:
    if sum(map(body.count, (b"[", b"{", b","))) < values_max:
        return False
    values = 1
    for match in _STRING_OR_VALUE.finditer(body):
        values += body[match.start()] != _QUOTE
        if values > values_max:
            return True
    return False


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise BadRequest("The body has an object in which a name comes twice.")
    return made


def _refuse_constant(name: str) -> object:
    raise BadRequest(f"The body is not valid JSON: {name} is no JSON value.")

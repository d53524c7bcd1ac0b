"""JSON of strangers, read strictly, in bounded time and memory.

Python's parser is fast, but four things must not pass: names given twice (which one counts?), numbers that JSON does
not have (NaN), small texts that become large values (an empty list takes three bytes of text and sixty of memory, a
short string not much less), and texts that keep it busy for long, since nothing else runs in the process meanwhile.

Every value is the first of an object or a list, or stands behind a comma. So the brackets that open and the commas
outside of strings are at least as many as the values, and are counted before any is made. Brackets have a bound of
their own: a list or an object takes ten times as long to make as a number.

A text is bounded by ``BYTES_MAX``. Longer ones are lists of messages, which are read piece by piece (`jsonlist`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from broker.errors import BadRequest, BodyTooLarge, RequestError
from broker.wire.read_steps import Steps, finish

BYTES_MAX: Final = 2 * 1024 * 1024
"""The longest text, and in a list the longest message. Python's parser takes up to 10 ms for it."""
VALUES_MAX: Final = 100_000
"""How many values a text may have where nothing else is said."""
BRACKETS_MAX: Final = 2_000
"""How many lists and objects a text may have."""

# A string, so that nothing inside it is seen, or what a further value needs.
_PATTERN = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]'
_STRING_OR_VALUE = re.compile(_PATTERN.encode(), re.DOTALL)
_STEP_MATCHES: Final = 4_096


def parse(
    body: bytes,
    *,
    bytes_max: int = BYTES_MAX,
    values_max: int = VALUES_MAX,
    too_many: type[RequestError] = BadRequest,
    number: Callable[[str], object] | None = None,
) -> object:
    """Return the value that a JSON text says.

    Args:
        body: the text, UTF-8.
        bytes_max: how long it may be.
        values_max: how many values it may have, those inside of others counted too, and each empty
            list or object as two.
        too_many: what is raised if it has more.
        number: makes a value of the text of a number; else they become int and float.

    Raises:
        BadRequest: it is no JSON.
        BodyTooLarge: it is longer.
    """
    if len(body) > bytes_max:
        raise BodyTooLarge(f"The body may have {bytes_max} bytes; this one has {len(body)}.")
    return finish(parse_steps(body, values_max=values_max, too_many=too_many, number=number))


def parse_steps(
    body: bytes,
    *,
    values_max: int = VALUES_MAX,
    too_many: type[RequestError] = BadRequest,
    number: Callable[[str], object] | None = None,
) -> Steps[object]:
    """Return the value that a JSON text says, in steps, as ``parse``."""
    if len(body) > BYTES_MAX:
        raise BodyTooLarge(
            f"JSON without a list of messages may have {BYTES_MAX} bytes; this has {len(body)}. Send it as avro/binary."
        )
    if (yield from more_values(body, values_max)):
        raise too_many(f"The body has more than {values_max} JSON values.")
    try:
        text = body.decode("utf-8")
        yield
        return decoder(number).decode(text)
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None


def decoder(number: Callable[[str], object] | None = None) -> json.JSONDecoder:
    """Return what reads values strictly; it raises ValueError, RecursionError, BadRequest."""
    return json.JSONDecoder(
        object_pairs_hook=_make_object,
        parse_constant=_refuse_constant,
        parse_int=number,
        parse_float=number,
    )


def more_values(text: bytes, values_max: int) -> Steps[bool]:
    """Return in steps whether a text, UTF-8, has more values than so many, or more brackets than a text may have."""
    brackets = sum(map(text.count, (b"[", b"{")))
    if brackets <= BRACKETS_MAX and brackets + text.count(b",") < values_max:
        return False
    brackets, values = 0, 1
    first_bytes = (text[match.start()] for match in _STRING_OR_VALUE.finditer(text))
    while some := bytes(islice(first_bytes, _STEP_MATCHES)):
        brackets += len(some) - some.count(b'"') - some.count(b",")
        values += len(some) - some.count(b'"')
        if brackets > BRACKETS_MAX or values > values_max:
            return True
        yield
    return False


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise BadRequest("The body has an object in which a name comes twice.")
    return made


def _refuse_constant(name: str) -> object:
    raise BadRequest(f"The body is not valid JSON: {name} is no JSON value.")

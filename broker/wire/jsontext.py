"""Read untrusted JSON strictly, in bounded time and memory.

Python's parser is fast, but this reader must refuse four kinds of text:

* objects in which a name occurs twice, because it is unclear which one counts;
* numbers that JSON does not have (NaN);
* small texts that become large values (an empty list takes three bytes of text and sixty of memory, and a short string
  is not much better);
* texts that keep the parser busy for long, because meanwhile nothing else runs in the process.

Every value is the first of an object or a list, or follows a comma. So the number of opening brackets and of commas
outside of strings is an upper bound of the number of values. This reader counts them before it makes any value.
Brackets have a limit of their own, because a list or an object takes ten times as long to make as a number.

``BYTES_MAX`` is the limit of a text. Longer texts are lists of messages; `jsonlist` reads them piece by piece.

**Numbers of 64 bits** are written as strings, and read from strings and from numbers that are exact. JavaScript, and many
other readers of JSON, keep every number as a double. A double holds whole numbers up to 2^53; of a larger one it keeps
the nearest that it has, without an error. A write pointer has 61 bits, so such a reader would name another transaction.
Times in ms, counts and sizes stay numbers: they are far below 2^53.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from broker.errors import BadRequest, BodyTooLarge
from broker.operations.operation import JSON_TEXT_BYTES_MAX as BYTES_MAX
from broker.wire.varint import LONG_MAX

VALUES_MAX: Final = 100_000
"""The default for the maximum number of values in a text."""
BRACKETS_MAX: Final = 2_000
"""The maximum number of lists and objects in a text."""
ANSWER_VALUES_MAX: Final = 5_000_000
ANSWER_BRACKETS_MAX: Final = 500_000
"""The same for an answer: they take about 300 MiB of memory."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string, also one without an end: commas and brackets inside are not counted."""


def parse(
    body: bytes,
    *,
    bytes_max: int | None = None,
    values_max: int = VALUES_MAX,
    number: Callable[[str], object] | None = None,
) -> object:
    """Return the value of a JSON text.

    Args:
        body: the text, UTF-8.
        bytes_max: the maximum size of the text; ``BYTES_MAX`` if None.
        values_max: the maximum number of values. Values inside of others count, too, and each empty list or
            object counts as two.
        number: makes a value from the text of a number; by default numbers become int and float.

    Raises:
        BadRequest: it is not JSON, or has too many values.
        BodyTooLarge: it is longer than ``bytes_max``.
    """
    if bytes_max is not None and len(body) > bytes_max:
        raise BodyTooLarge(f"The body may have {bytes_max} bytes; this one has {len(body)}.")
    if len(body) > BYTES_MAX:
        raise BodyTooLarge(
            f"JSON without a list of messages may have {BYTES_MAX} bytes; this has {len(body)}. Send it as avro/binary."
        )
    if excess := too_many_values(body, values_max):
        raise BadRequest(f"The body has {excess}.")
    try:
        return decoder(number).decode(body.decode("utf-8"))
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None


def decoder(number: Callable[[str], object] | None = None) -> json.JSONDecoder:
    """Return a strict decoder. It raises ValueError, RecursionError and BadRequest."""
    return json.JSONDecoder(
        object_pairs_hook=_make_object,
        parse_constant=_refuse_constant,
        parse_int=number,
        parse_float=number,
    )


def too_many_values(text: bytes, values_max: int, brackets_max: int = BRACKETS_MAX) -> str:
    """Return of what a UTF-8 text has too many, and the bound: values, or lists and objects. If none, return ""."""
    brackets = sum(map(text.count, (b"[", b"{")))
    if brackets <= brackets_max and brackets + text.count(b",") < values_max:
        return ""
    brackets, values, begin = 0, 1, 0
    for string in chain(_STRING.finditer(text), (None,)):
        end = len(text) if string is None else string.start()
        opened = text.count(b"[", begin, end) + text.count(b"{", begin, end)
        brackets += opened
        values += opened + text.count(b",", begin, end)
        if values > values_max:
            return f"more than {values_max} JSON values"
        if brackets > brackets_max:
            return f"more than {brackets_max} lists and objects"
        begin = end if string is None else string.end()
    return ""


def json_of(body: bytes) -> Any:
    """Return the JSON value of an answer, or of a line of a file. Any server or program may have written it.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has too many values.
    """
    if excess := too_many_values(body, ANSWER_VALUES_MAX, ANSWER_BRACKETS_MAX):
        raise ValueError(f"the JSON has {excess}")
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise BadRequest("The body has an object in which a name comes twice.")
    return made


def _refuse_constant(name: str) -> object:
    raise BadRequest(f"The body is not valid JSON: {name} is not a JSON value.")


# --- A JSON value as the payload of a message -----------------------------------------------------

_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(value: object, where: str = "json") -> bytes:
    """Return a JSON value as compact UTF-8 text. Names keep their order.

    Raises:
        BadRequest: it has a number that JSON does not have, text that is no valid Unicode, a value of another type, or it
            is nested too deeply. The message begins with ``where``.
    """
    try:
        return _COMPACT.encode(value).encode()
    except UnicodeEncodeError:
        reason = "has text that is not valid Unicode"
    except RecursionError:
        reason = "is nested too deeply"
    except (TypeError, ValueError) as error:
        reason = f"is not a JSON value: {error}"
    raise BadRequest(f"{where}: {reason}.")


# --- Numbers of 64 bits ---------------------------------------------------------------------------

_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def read_long(
    where: str, value: object, *, least: int = -LONG_MAX - 1, most: int = LONG_MAX
) -> int:
    """Return the whole number of a JSON value: a string of decimal digits, or a number that a double holds.

    Raises:
        BadRequest: the value is no such number, is not within the bounds, or is a number that no double holds.
    """
    number: object = value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    elif _is_inexact(value):
        raise BadRequest(
            f"{where}: {value} is a number that no double holds, so readers of JSON may change it. Send it as a string: "
            f'"{value}".'
        )
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        bounds = "of 64 bits" if least < 0 else f"from {least} to 2^63-1"
        raise BadRequest(
            f"{where}: must be a whole number {bounds}, best as a string, not {value!a:.80}."
        )
    return number


def shown_long(number: int | None) -> str | None:
    """Return a number as JSON has it; None stays None."""
    return None if number is None else str(number)


def _is_inexact(value: object) -> bool:
    """Return whether a value is a 64-bit number that a double rounds."""
    return isinstance(value, int) and abs(value) <= LONG_MAX + 1 and int(float(value)) != value

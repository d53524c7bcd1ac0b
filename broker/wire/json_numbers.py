"""Numbers of 64 bits in JSON: written as strings, read from strings and from numbers that are exact.

JavaScript, and many other readers of JSON, keep every number as a double. A double holds whole numbers up to 2^53; of a
larger one it keeps the nearest that it has, without an error. A write pointer has 61 bits, so such a reader would name
another transaction. Times in ms, counts and sizes stay numbers: they are far below 2^53.
"""

from __future__ import annotations

import re
from typing import Final

from broker.errors import BadRequest
from broker.wire.varint import LONG_MAX

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

"""JSON of strangers, read strictly and in bounded memory.

Python's parser is fast, but three things must not pass: names given twice (which one counts?),
numbers that JSON does not have (NaN), and small texts that become large values. An empty list takes
two bytes of text and sixty of memory: the requests here have at most three lists and a few objects, and
whatever has many more is refused before, or while, it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from broker.errors import BadRequest

OBJECTS_MAX: Final = 64
LISTS_MAX: Final = 16
"""What a request may have, with room for typing errors that deserve a better message."""

# A string (so that brackets inside it are not seen), or the beginning of a list.
_STRING_OR_LIST = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\[', re.DOTALL)
_LIST = b"["[0]


def parse(
    body: bytes, *, lists_max: int = LISTS_MAX, number: Callable[[str], object] | None = None
) -> object:
    """Return the value that a JSON text says.

    Args:
        body: the text, UTF-8.
        lists_max: how many lists it may have.
        number: makes a value of the text of a number; else they become int and float.

    Raises:
        BadRequest: it is no JSON, or has more lists or objects than allowed.
    """
    _check_lists(body, lists_max)
    try:
        text = body.decode("utf-8")
        return json.loads(
            text,
            object_pairs_hook=_Objects(),
            parse_constant=_refuse_constant,
            parse_int=number,
            parse_float=number,
        )
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None


class _Objects:
    """Makes objects, up to a bound, without names that come twice."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = OBJECTS_MAX

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise BadRequest(f"The body has more than {OBJECTS_MAX} JSON objects.")
        made = dict(pairs)
        if len(made) < len(pairs):
            raise BadRequest("The body has an object in which a name comes twice.")
        return made


def _refuse_constant(name: str) -> object:
    raise BadRequest(f"The body is not valid JSON: {name} is no JSON value.")


def _check_lists(body: bytes, lists_max: int) -> None:
    if body.count(b"[") <= lists_max:
        return
    lists = 0
    for match in _STRING_OR_LIST.finditer(body):
        lists += body[match.start()] == _LIST
        if lists > lists_max:
            raise BadRequest(f"The body has more JSON lists than can be ({lists_max}).")

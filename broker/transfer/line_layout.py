r"""The layout in which a message is written as a line.

A layout is text with fields for the parts of a message::

    '{time} {id} {payload}'     '{key}\t{payload}'     'headers: {headers}'

A field is a name in braces; two braces stand for one brace. ``\n``, ``\t`` and ``\\`` are a line end, a tab and
a backslash. Every message ends with a line end.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.model import NO_HEADERS, Message
from broker.moments import time_text

FIELDS: Final = ("time", "id", "payload", "key", "headers")
_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "\\": "\\"}


class LineLayout(NamedTuple):
    """A parsed layout: literal bytes, each followed by a field, or by an empty name for no field."""

    parts: tuple[tuple[bytes, str], ...]

    def line(self, fields: Mapping[str, bytes]) -> bytes:
        """Return a message's line."""
        written = [literal + (fields[name] if name else b"") for literal, name in self.parts]
        return b"".join(written) + b"\n"

    def of_message(self, message: Message, shown: Callable[[bytes], bytes] = bytes) -> bytes:
        """Return a message's line; ``shown`` makes the line's form of a payload, a key or the headers."""
        return self.line(
            {
                "time": time_text(message.timestamp_ms).encode(),
                "id": message.id.hex().encode(),
                "payload": shown(message.payload),
                "key": shown(message.key or b""),
                "headers": shown(headers_text(message.headers)),
            }
        )


def headers_text(headers: Mapping[str, bytes] = NO_HEADERS) -> bytes:
    """Return headers as ``name=value`` with commas between them."""
    return b",".join(name.encode() + b"=" + value for name, value in headers.items())


def layout_of(text: str) -> LineLayout:
    """Parse a layout.

    Raises:
        ValueError: a field is unknown, or the braces or backslashes are not valid.
    """
    parts = []
    # Braces come before escapes, so an escape can't make a brace.
    for literal, name, spec, conversion in string.Formatter().parse(text):
        if name is not None:
            _check_field(name, spec or "", conversion)
        parts.append(
            (_ESCAPE.sub(_escaped, literal).encode("utf-8", "surrogateescape"), name or "")
        )
    return LineLayout(tuple(parts))


def _check_field(name: str, spec: str, conversion: str | None) -> None:
    known = ", ".join(f"{{{field}}}" for field in FIELDS)
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"; did you mean {{{near[0]}}}?" if near else "."
        raise ValueError(f"there is no field {{{name}}}{hint} The fields are {known}")
    if spec or conversion:
        raise ValueError(f"{{{name}}} takes no format: write it without : and !")


def _escaped(found: re.Match[str]) -> str:
    letter = found[1]
    if letter not in _ESCAPED:
        raise ValueError(f"\\{letter} is not an escape: write \\n, \\t, or \\\\ for a backslash")
    return _ESCAPED[letter]


PLAIN: Final = layout_of("{payload}")
WITH_IDS: Final = layout_of("{id} {time} {payload}")

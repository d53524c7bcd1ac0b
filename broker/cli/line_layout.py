r"""The layout of ``--format``: text with fields for the parts of a message.

::

    '{time} {id} {payload}'     '{key}\t{payload}'     'headers: {headers}'

A field is a name in braces; two braces stand for one brace. ``\n``, ``\t`` and ``\\`` are a line end, a tab and
a backslash. Every message ends with a line end. Payloads, keys and headers are written byte for byte to a
file or a pipe; a terminal gets them escaped, see ``escapes``.
"""

from __future__ import annotations

import difflib
import re
import string
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click
from typing_extensions import override

from broker.cli.output import message_json, time_text, write_json
from broker.escapes import escaped_bytes
from broker.model import NO_HEADERS, Message

Command = TypeVar("Command", bound=Callable[..., Any])

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


class LayoutType(click.ParamType[LineLayout]):
    """The type of a parameter that is a layout."""

    name = "layout"

    @override
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> LineLayout:
        if isinstance(value, LineLayout):
            return value
        try:
            return layout_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


PLAIN: Final = layout_of("{payload}")
WITH_IDS: Final = layout_of("{id} {time} {payload}")


def write_message(message: Message, layout: LineLayout | None) -> None:
    """Write one message in a layout; without one, as a JSON object on one line.

    A terminal gets the bytes of others escaped; a file or a pipe gets them as they are.
    """
    if layout is None:
        write_json(message_json(message))
        return
    line = layout.of_message(message, escaped_bytes if sys.stdout.isatty() else bytes)
    sys.stdout.buffer.write(line)


def layout_options(command: Command) -> Command:
    """Add ``--ids`` and ``-f``; ``chosen`` turns them into the layout for ``write_message``."""
    ids = click.option("--ids", is_flag=True, help="Write the id and time before each message.")
    return ids(format_option(command))


def chosen(layout: LineLayout | None, *, ids: bool, as_json: bool) -> LineLayout | None:
    """Return the layout to write in; None for JSON. Raises click.UsageError if two forms are given."""
    check_one_form(layout, ids=ids, json=as_json)
    if as_json:
        return None
    return layout or (WITH_IDS if ids else PLAIN)


def format_option(command: Command) -> Command:
    """Add ``-f``, ``--format``."""
    return click.option(
        "-f",
        "--format",
        "layout",
        type=LayoutType(),
        metavar="LAYOUT",
        help="The layout of each message: '{time} {id} {payload}'; also {key}, {headers}, \\n, \\t.",
    )(command)


def check_one_form(layout: LineLayout | None, **others: object) -> None:
    """Refuse a layout together with another form of output. Raises click.UsageError."""
    for name, value in others.items():
        if layout is not None and value:
            raise click.UsageError(f"Give --format or --{name}, not both.")

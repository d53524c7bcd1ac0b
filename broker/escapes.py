r"""Text that came from elsewhere, made safe for a terminal and for a line of a log.

A topic's property, a payload, a header, a name, a server's error may have any characters: escape sequences that
rewrite the screen, line ends that forge a row, marks that turn the direction of the text. Every place that shows
text to people escapes it here, as Python writes it in a string: ``\x1b``, ``\n``, ``\u202e``.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

from typing_extensions import override

_UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1.
    "\u2028\u2029"  # The ends of lines and paragraphs.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # These turn the direction of the text.
    "\xad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # No width.
    "\ud800-\udfff"  # Lone surrogates; file names that are not UTF-8 have them.
    "]"
)


def escaped(text: str) -> str:
    """Return text on one line, without a character that a terminal obeys, hides or can't encode."""
    return _UNSAFE.sub(_as_python, text)


def escaped_lines(text: str) -> str:
    """Return text whose line ends are meant, with every line escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped_json(text: str) -> str:
    """Return the text of a JSON value with the same value, escaped as JSON writes it."""
    return _UNSAFE.sub(_as_json, text)


def escaped_bytes(value: bytes) -> bytes:
    """Return bytes as escaped UTF-8; a byte that is not UTF-8 becomes an escape, too."""
    return escaped(value.decode("utf-8", "backslashreplace")).encode()


def _as_python(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _as_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


class _Shown:
    """An argument of a log record, escaped in each of its forms."""

    def __init__(self, value: object) -> None:
        self._value = value

    @override
    def __str__(self) -> str:
        return escaped(str(self._value))

    @override
    def __repr__(self) -> str:
        return escaped(repr(self._value))


def _escape_arguments(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(
            each if isinstance(each, int | float) else _Shown(each) for each in record.args
        )
    return True


def escaping_logger(name: str) -> logging.Logger:
    """Return the standard library's logger of a name; the arguments of its records come from others, and are escaped."""
    logger = logging.getLogger(name)
    if _escape_arguments not in logger.filters:
        logger.addFilter(_escape_arguments)
    return logger

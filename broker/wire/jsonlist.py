"""Read a long JSON text in runs: a list, or an object that contains one long list.

::

    ["a", "b", …]                                the list alone
    {"messages": ["a", "b", …], "write_pointer": 17}       beside other fields, in any order

Only a window of the text is decoded at any time, since a single character can make decoded text four times as large as
its bytes. Only the window is parsed. A value that is larger than the window enlarges it, up to a limit. So the parser
returns after a few milliseconds for any text, and other threads may run. Before the next window, the caller may use the
values read so far, and may refuse more.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from broker.errors import BadRequest, BodyTooLarge
from broker.operations.operation import JSON_TEXT_BYTES_MAX as BYTES_MAX
from broker.wire.jsontext import decoder, parse, too_many_values

WINDOW_BYTES: Final = 16 * 1024
"""A text up to this size is parsed at once."""
STEP_BYTES: Final = 512 * 1024
"""The window grows by at most so many bytes at once."""
VALUES_MAX: Final = 2_000
"""The maximum number of JSON values in a value larger than the window. A message with all its headers has fewer."""

_SPACE = re.compile(r"[ \t\n\r]*")
_RUN_MAX: Final = 256
_TOKEN_CHARACTERS: Final = 16
"""An error this close to the window's end may only mean that the window ends there."""

Add = Callable[[list[Any]], None]
"""Is called with some values of the list, in order."""


def read_list(body: bytes, name: str, add: Add, check_name: Callable[[str], None]) -> object:
    """Read a text. Return the rest of it without the list: an object's other fields, or another value.

    The result has an empty list in place of the list. The field ``name`` of an object may also have another value.

    Args:
        body: the text, UTF-8.
        name: the field of an object that has the list.
        add: is called with the values of the list, run by run, in order.
        check_name: is called with each name in an object longer than the window, before its value is read. It raises
            an error for an unknown name, so that a body can't make this reader keep many values.

    Raises:
        BadRequest: it is not JSON.
        BodyTooLarge: a value of the list, or all other fields together, are longer than ``BYTES_MAX``.
        BrokerError: the errors of ``add`` and ``check_name``.
    """
    if len(body) <= WINDOW_BYTES:
        return _outside(add, name, parse(body))
    text = _Text(body)
    rest: object = []
    opening = text.peek()
    if opening == "[":
        text.items(add)
    elif opening == "{":
        rest = _fields(text, name, add, check_name)
    else:
        rest = text.value()
    if text.peek():
        raise text.wrong("there is more text after its end")
    return rest


def _outside(add: Add, name: str, value: object) -> object:
    """Pass the list of a value that was parsed at once to ``add``; return the rest."""
    if isinstance(value, list):
        add(value)
        return []
    if isinstance(value, dict) and isinstance(found := value.get(name), list):
        add(found)
        value[name] = []
    return value


def _fields(
    text: _Text, name: str, add: Add, check_name: Callable[[str], None]
) -> dict[str, object]:
    """Read an object. The next character is its brace."""
    fields: dict[str, object] = {}
    kept_bytes = 0
    text.at += 1
    if text.peek() == "}":
        text.at += 1
        return fields
    while True:
        if text.peek() != '"':
            raise text.wrong("the name of a field is expected")
        field = text.value()
        text.expect(":")
        if field in fields:
            raise BadRequest("The body has an object in which a name comes twice.")
        check_name(field)
        if field == name and text.peek() == "[":
            fields[field] = []
            text.items(add)
        else:
            begin = text.bytes_read
            fields[field] = text.value()
            kept_bytes += text.bytes_read - begin
            if kept_bytes > BYTES_MAX:
                raise _too_long()
        if text.expect(",}") == "}":
            return fields


class _Text:
    """A window on a text, and the position up to which it was read."""

    def __init__(self, body: bytes) -> None:
        self.at = 0
        self._text = ""
        self._body = body
        self._decoded = 0
        """The number of bytes of the body that the window contains, or has contained."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._scan = decoder().raw_decode

    def items(self, add: Add) -> None:
        """Read the values of a list, run by run. The next character is its bracket."""
        self.at += 1
        if self.peek() == "]":
            self.at += 1
            return
        while True:
            if run := self._items_in_window():
                add(run)
            else:
                add([self.value()])
                if self.expect(",]") == "]":
                    return

    def value(self) -> Any:
        """Return the next value."""
        while True:
            self.peek()
            wrong = "a value is expected"
            try:
                value, end = self._scan(self._text, self.at)
            except RecursionError:
                raise BadRequest("The body is nested too deeply.") from None
            except json.JSONDecodeError as error:
                wrong = error.msg
                is_sure = error.pos + _TOKEN_CHARACTERS < len(self._text)
                if is_sure and not wrong.startswith("Unterminated"):
                    raise self.wrong(wrong) from None
            except ValueError as error:  # Python does not read a number with so many digits.
                raise self.wrong(str(error)) from None
            else:
                # A number may continue behind the window even if it seems complete: the 1 of 1e5 is a number, too.
                margin = _TOKEN_CHARACTERS if isinstance(value, int | float) else 0
                if end + margin < len(self._text) or self._is_last:
                    self.at = end
                    return value
            if self._is_last:
                raise self.wrong(wrong)
            self._widen()

    def peek(self) -> str:
        """Return the next character that is not a space, without moving; "" at the end."""
        while True:
            self.at = _end_of_space(self._text, self.at)
            if self.at < len(self._text) or self._is_last:
                return self._text[self.at : self.at + 1]
            self._more(WINDOW_BYTES)

    def expect(self, characters: str) -> str:
        """Return the next character that is not a space, and move behind it. Raises BadRequest if it is unexpected."""
        found = self.peek()
        if not found or found not in characters:
            raise self.wrong(f"{' or '.join(characters)} is expected")
        self.at += 1
        return found

    def wrong(self, what: str) -> BadRequest:
        """Return the error for a text that is not JSON."""
        return BadRequest(f"The body is not valid JSON: {what}, near byte {self.bytes_read:,}.")

    @property
    def bytes_read(self) -> int:
        """The place up to which the text was read, in bytes. It may be some bytes too large."""
        return self._decoded - len(self._text[self.at :].encode())

    @property
    def _is_last(self) -> bool:
        return self._decoded == len(self._body)

    def _items_in_window(self) -> list[Any]:
        """Read values that a comma follows in the window; return none if the next value has no comma yet."""
        text, at = self._text, self.at
        if text.startswith('"', at):
            # Parse a run of strings at once. If this cut contains other values, the loop below reads them.
            cut = text.rfind('",', at) + 1
            with suppress(ValueError, RecursionError):
                run, end = self._scan(f"[{text[at:cut]}]")
                if cut > at and end == cut - at + 2:
                    self.at = cut + 1
                    return list(run)
        found: list[Any] = []
        # The value may be incomplete; if not, ``value`` raises the error.
        with suppress(ValueError, RecursionError):
            while len(found) < _RUN_MAX:
                value, end = self._scan(text, _end_of_space(text, at))
                end = _end_of_space(text, end)
                if not text.startswith(",", end):
                    break
                found.append(value)
                at = end + 1
        self.at = at
        return found

    def _widen(self) -> None:
        """Enlarge the window for a value that does not end in it. Raises BodyTooLarge if the value is too large."""
        started = self._text[self.at :].encode()
        if len(started) > WINDOW_BYTES:
            if len(started) > BYTES_MAX:
                raise _too_long()
            if excess := too_many_values(started, VALUES_MAX):
                raise BodyTooLarge(f"A message of the body has {excess}.")
        self._more(min(max(WINDOW_BYTES, len(started)), STEP_BYTES))

    def _more(self, size: int) -> None:
        """Move the window: drop the text that was read, and decode the next bytes."""
        piece = self._body[self._decoded : self._decoded + size]
        self._text, self.at = self._text[self.at :], 0
        self._decoded += len(piece)
        try:
            self._text += self._utf8.decode(piece, final=self._is_last)
        except UnicodeDecodeError as error:
            raise self.wrong(f"it is not UTF-8 ({error.reason})") from None


def _too_long() -> BodyTooLarge:
    return BodyTooLarge(
        f"A message in JSON may have {BYTES_MAX} bytes. Send a longer one as avro/binary, or as the "
        "whole body, as text/plain."
    )


def _end_of_space(text: str, at: int) -> int:
    if text[at : at + 1] > " ":
        return at
    found = _SPACE.match(text, at)
    assert found is not None, "the pattern also matches no spaces"
    return found.end()

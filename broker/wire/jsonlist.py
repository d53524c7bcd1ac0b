"""Reads a long JSON text that is a list, or an object with one long list in it, run by run.

::

    ["a", "b", …]                                the list alone
    {"messages": ["a", "b", …], "write_pointer": 17}       beside other fields, in any order

Only a window of the text is there as text at any time, since a single character can make it four times as large as its
bytes, and only what stands in the window is parsed at once. A value that is larger than the window makes it larger, up
to a bound. So each step takes a few milliseconds, whatever the text has in it, and the caller may use what was read,
and refuse more, before the next step.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

from broker.errors import BadRequest, BodyTooLarge
from broker.wire.jsontext import BYTES_MAX, decoder, more_values, parse_steps
from broker.wire.read_steps import STEP_BYTES, Steps

WINDOW_BYTES: Final = 16 * 1024
"""Texts up to this long can as well be parsed at once."""
VALUES_MAX: Final = 2_000
"""How many values one that is larger than the window may have in it: a message with all its headers has fewer."""

_SPACE = re.compile(r"[ \t\n\r]*")
_RUN_MAX: Final = 256
_TOKEN_CHARACTERS: Final = 16
"""An error so close to the window's end may only mean that the window ends there."""

_Run = list[Any] | None
"""Some values of the list, in order; None where a step ends without any."""


def read_list(body: bytes, name: str, add: Callable[[list[Any]], None]) -> Steps[object]:
    """Read a text in steps, and return what it says beside its list: an object's other fields, or another value.

    In the place of the list stands an empty one. An object may have something else than a list under ``name``.

    Args:
        body: the text, UTF-8.
        name: the field of an object that has the list.
        add: is given the values of the list, run by run, in order.

    Raises:
        BadRequest: it is no JSON.
        BodyTooLarge: a value is longer than ``BYTES_MAX``.
        BrokerError: what ``add`` raises.
    """
    if len(body) <= WINDOW_BYTES:
        return _outside(add, name, (yield from parse_steps(body)))
    runs = _read(_Text(body), name)
    while True:
        try:
            run = next(runs)
        except StopIteration as done:
            rest: object = done.value
            return rest
        yield
        if run:
            add(run)


def _outside(add: Callable[[list[Any]], None], name: str, value: object) -> object:
    """Give away the list of a value that was read at once."""
    if isinstance(value, list):
        add(value)
        return []
    if isinstance(value, dict) and isinstance(found := value.get(name), list):
        add(found)
        value[name] = []
    return value


def _read(text: _Text, name: str) -> Generator[_Run, None, object]:
    rest: object = []
    opening = yield from text.peek()
    if opening == "[":
        yield from text.items()
    elif opening == "{":
        rest = yield from _fields(text, name)
    else:
        rest = yield from text.value()
    if (yield from text.peek()):
        raise text.wrong("there is more behind its end")
    return rest


def _fields(text: _Text, name: str) -> Generator[_Run, None, dict[str, object]]:
    """Read an object whose brace comes next."""
    fields: dict[str, object] = {}
    text.at += 1
    if (yield from text.peek()) == "}":
        text.at += 1
        return fields
    while True:
        if (yield from text.peek()) != '"':
            raise text.wrong("the name of a field is expected")
        field = yield from text.value()
        yield from text.expect(":")
        if field in fields:
            raise BadRequest("The body has an object in which a name comes twice.")
        if field == name and (yield from text.peek()) == "[":
            fields[field] = []
            yield from text.items()
        else:
            fields[field] = yield from text.value()
        if (yield from text.expect(",}")) == "}":
            return fields


class _Text:
    """A window on a text, and the place in it up to which it was read."""

    def __init__(self, body: bytes) -> None:
        self.at = 0
        self._text = ""
        self._body = body
        self._decoded = 0
        """Bytes of the body that are in the window, or were."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._scan = decoder().raw_decode

    def items(self) -> Generator[_Run, None, None]:
        """Yield the values of a list whose bracket comes next, run by run."""
        self.at += 1
        if (yield from self.peek()) == "]":
            self.at += 1
            return
        while True:
            if run := self._whole_items():
                yield run
            else:
                yield [(yield from self.value())]
                if (yield from self.expect(",]")) == "]":
                    return

    def value(self) -> Steps[Any]:
        """Return the value that comes next."""
        while True:
            yield from self.peek()
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
            except ValueError as error:  # A number with more digits than Python reads.
                raise self.wrong(str(error)) from None
            else:
                # A number may go on behind the window, also if it ends before: of 1e5, 1e would read as 1.
                margin = _TOKEN_CHARACTERS if isinstance(value, int | float) else 0
                if end + margin < len(self._text) or self._is_last:
                    self.at = end
                    return value
            if self._is_last:
                raise self.wrong(wrong)
            yield from self._widen()

    def peek(self) -> Steps[str]:
        """Return the next character that is no space, and stay before it; "" at the end."""
        while True:
            self.at = _end_of_space(self._text, self.at)
            if self.at < len(self._text) or self._is_last:
                return self._text[self.at : self.at + 1]
            self._more(WINDOW_BYTES)
            yield

    def expect(self, characters: str) -> Steps[str]:
        """Return the next character that is no space, and go behind it. Raises BadRequest if it is another."""
        found = yield from self.peek()
        if not found or found not in characters:
            raise self.wrong(f"{' or '.join(characters)} is expected")
        self.at += 1
        return found

    def wrong(self, what: str) -> BadRequest:
        """Return the error of a text that is no JSON."""
        near = self._decoded - len(self._text[self.at :].encode())
        return BadRequest(f"The body is not valid JSON: {what}, near byte {near:,}.")

    @property
    def _is_last(self) -> bool:
        return self._decoded == len(self._body)

    def _whole_items(self) -> list[Any]:
        """Read values of a list that end with a comma in the window; none if the next one does not."""
        text, at = self._text, self.at
        if text.startswith('"', at):
            # Strings alone are read in one go. Where this cut is none, there are other values.
            cut = text.rfind('",', at) + 1
            with suppress(ValueError, RecursionError):
                run, end = self._scan(f"[{text[at:cut]}]")
                if cut > at and end == cut - at + 2:
                    self.at = cut + 1
                    return list(run)
        found: list[Any] = []
        with suppress(
            ValueError, RecursionError
        ):  # The next call tells, once all of the value is there.
            while len(found) < _RUN_MAX:
                value, end = self._scan(text, _end_of_space(text, at))
                end = _end_of_space(text, end)
                if not text.startswith(",", end):
                    break
                found.append(value)
                at = end + 1
        self.at = at
        return found

    def _widen(self) -> Steps[None]:
        """Add to the window, for a value that does not end in it. Raises BodyTooLarge if it is too large."""
        started = self._text[self.at :].encode()
        if len(started) > WINDOW_BYTES:
            if len(started) > BYTES_MAX:
                raise BodyTooLarge(
                    f"A message in JSON may have {BYTES_MAX} bytes. Send longer ones as avro/binary, or one "
                    "alone as it is, as text/plain."
                )
            yield
            if (yield from more_values(started, VALUES_MAX)):
                raise BodyTooLarge(f"A message may have {VALUES_MAX} JSON values in it, not more.")
            yield
        self._more(min(max(WINDOW_BYTES, len(started)), STEP_BYTES))
        yield

    def _more(self, size: int) -> None:
        """Move the window: forget what was read, and add the next bytes."""
        piece = self._body[self._decoded : self._decoded + size]
        self._text, self.at = self._text[self.at :], 0
        self._decoded += len(piece)
        try:
            self._text += self._utf8.decode(piece, final=self._is_last)
        except UnicodeDecodeError as error:
            raise self.wrong(f"it is no UTF-8 ({error.reason})") from None


def _end_of_space(text: str, at: int) -> int:
    if text[at : at + 1] > " ":
        return at
    found = _SPACE.match(text, at)
    assert found is not None, "any text begins with no space at least"
    return found.end()

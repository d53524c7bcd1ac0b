import io
import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.escapes import escaped, escaped_bytes, escaped_json, escaped_lines, escaping_logger

OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys: controls, line ends, and turns of the direction."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("audit/logins", "audit/logins"),
        ("čaj für 東京 👩‍🚀 می‌خواهم", "čaj für 東京 👩‍🚀 می‌خواهم"),
        ('{"a": "\\u001b"}', '{"a": "\\u001b"}'),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("a\nb\r\tc\x00", r"a\nb\r\tc\x00"),
        ("\x7f\x9b31m\x85", r"\x7f\x9b31m\x85"),
        ("gpj.\u202eexe\u2066", r"gpj.\u202eexe\u2066"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("zero\u200bwidth\ufeff\U000e0041", r"zero\u200bwidth\ufeff\U000e0041"),
        ("\udcff\ud800", r"\udcff\ud800"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_shown_as_an_escape(text, shown):
    assert escaped(text) == shown


@given(st.text(st.characters(categories=None)))
def test_escaped_text_is_one_harmless_line_that_can_be_encoded(text):
    shown = escaped(text)
    assert not OBEYED.search(shown)
    assert not any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} for letter in shown)
    assert len(io.StringIO(shown).readlines()) <= 1
    assert escaped(shown) == shown
    assert escaped_lines(text).split("\n") == [escaped(line) for line in text.split("\n")]


@given(st.text(st.characters(categories=None)))
def test_escaped_json_is_the_same_value(text):
    written = escaped_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(written) == {text: text}
    assert not OBEYED.search(written)
    written.encode()


@given(st.binary())
def test_escaped_bytes_are_harmless_text(value):
    assert not OBEYED.search(escaped_bytes(value).decode())


def test_the_arguments_of_a_librarys_record_are_escaped(caplog):
    hostile = "\x1b[2J\nforged"
    log = escaping_logger("test.escapes")
    assert escaping_logger("test.escapes").filters == log.filters
    log.warning("%s of %d (%.1f): %r", ValueError(hostile), 3, 1.5, hostile)
    assert caplog.records[0].getMessage() == (r"\x1b[2J\nforged of 3 (1.5): '\x1b[2J\nforged'")

import re

import pytest

from broker.cli.line_layout import FIELDS, layout_of
from broker.model import Message

MESSAGE = Message(bytes(6) + b"\x03\xe8" + bytes(12), b"\xffpay", b"k", {"a": b"1", "b": b"\xfe"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{time} {payload}", b"1970-01-01T00:00:01.000Z \xffpay\n"),
        ("{id}", MESSAGE.id.hex().encode() + b"\n"),
        (r"{key}\t{headers}\n", b"k\ta=1,b=\xfe\n\n"),
        (r"{{{key}}} \\n", b"{k} \\n\n"),
        ("no place é", "no place é\n".encode()),
        ("", b"\n"),
    ],
)
def test_a_layout_has_places_and_escapes(text, line):
    assert layout_of(text).of_message(MESSAGE) == line


def test_missing_parts_of_a_message_are_empty():
    plain = Message(MESSAGE.id, b"")
    assert layout_of("[{payload}|{key}|{headers}]").of_message(plain) == b"[||]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{paylod}", "no field {paylod}; did you mean {payload}?"),
        ("{zzz}", "{time}, {id}, {payload}, {key}, {headers}"),
        ("{}", "no field {}"),
        ("{payload.decode}", "no field {payload.decode}"),
        ("{payload!r}", "without : and !"),
        ("{payload:>10}", "without : and !"),
        ("{payload", "expected '}'"),
        ("payload}", "Single '}'"),
        (r"\x", r"\x is not an escape"),
        ("\\", "is not an escape"),
    ],
)
def test_a_bad_layout_is_refused_with_advice(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        layout_of(text)


def test_all_fields_can_be_written():
    layout_of(" ".join(f"{{{name}}}" for name in FIELDS)).of_message(MESSAGE)

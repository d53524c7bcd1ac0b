from __future__ import annotations

import re

import click
import pytest

from broker.cli.messages import message_options as span
from broker.cli.messages.message_options import Span, SpanStart
from broker.client import Browsed, BrowsePage
from broker.model import Message, TopicId
from broker.places import Place
from broker.transfer.line_layout import FIELDS, layout_of

TOPIC = TopicId("a", "b")


def identifier(number):
    return number.to_bytes(8, "big") + bytes(12)


def row(number, kind="inline"):
    return Browsed(identifier(number), number, 0, None, kind, "none", None, b"", False, None)


class Browses:
    """A client that browses the given pages, newest first."""

    def __init__(self, *pages):
        self.pages = pages
        self.asked = []

    def browse(self, topic, *, stop, limit, descending, full):
        assert (topic, descending, full) == (TOPIC, True, False)
        self.asked.append((stop, limit))
        rows = self.pages[len(self.asked) - 1]
        more = len(self.asked) < len(self.pages)
        return BrowsePage(rows, f"{rows[-1].id.hex()}@2" if more else None)


def test_the_newest_are_counted_without_references_over_pages():
    client = Browses([row(9), row(8, "reference")], [row(7, "stored"), row(6)])
    found = span.newest(client, TOPIC, 2, None)
    assert [one.timestamp_ms for one in found] == [7, 9]
    assert client.asked == [(None, 2), (Place(identifier(8), 2), 2)]


def test_where_reading_starts():
    assert span.start(Browses(), TOPIC, Span(since=5)) == SpanStart(5, inclusive=True)
    assert span.start(Browses(), TOPIC, Span(after=identifier(5))) == (identifier(5), False)
    client = Browses([row(9), row(8)])
    assert span.start(client, TOPIC, Span(last=2, until=10)) == (identifier(8), True)
    assert client.asked == [(10, 2)]
    assert span.start(Browses([]), TOPIC, Span(last=2)) == (None, True)


def test_the_end_is_exclusive():
    message = Message(identifier(5), b"")
    assert not Span().ends_before(message)
    assert [Span(until=time).ends_before(message) for time in (4, 5, 6)] == [True, True, False]
    ends = [Span(until=identifier(number)).ends_before(message) for number in (4, 5, 6)]
    assert ends == [True, True, False]


def test_only_one_start_may_be_given():
    Span(since=1, until=2).checked()
    with pytest.raises(click.UsageError, match="--since or --last"):
        Span(since=1, last=2).checked()


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

"""Reading a list run by run gives the same values as Python's parser."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge, BrokerError, TooManyMessages
from broker.wire import jsonlist
from broker.wire.jsonlist import read_list

NAME = "messages"

texts = st.text(alphabet='ab"\\,[]{}:é😀 \n\t\x00', max_size=30)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)
items = st.lists(values, max_size=20)
bodies = st.one_of(
    items,
    values,
    st.builds(
        lambda before, listed, after: {**before, NAME: listed, **after},
        st.dictionaries(texts, scalars, max_size=2),
        items,
        st.dictionaries(texts, scalars, max_size=2),
    ),
)


def any_name(_: str) -> None:
    """Refuse no name."""


def read(body: bytes) -> tuple[list[Any], object]:
    found: list[Any] = []
    rest = read_list(body, NAME, found.extend, any_name)
    return found, rest


def expected(value: object) -> tuple[list[Any], object]:
    if isinstance(value, list):
        return value, []
    if isinstance(value, dict) and isinstance(value.get(NAME), list):
        return value[NAME], {**value, NAME: []}
    return [], value


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a few bytes, so that everything is larger."""
    monkeypatch.setattr(jsonlist, "WINDOW_BYTES", 20)


@pytest.mark.slow
@settings(max_examples=400)
@given(bodies, st.booleans(), st.sampled_from([None, 1, "\t"]), st.integers(8, 60))
def test_reading_in_runs_equals_reading_at_once(value, ascii_only, indent, window):
    try:
        body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsonlist, "WINDOW_BYTES", window)
        assert read(body) == expected(json.loads(body))


@pytest.mark.slow
@settings(max_examples=400)
@given(bodies, st.data(), st.integers(8, 60))
def test_text_that_is_no_json_at_once_is_none_in_runs(value, data, window):
    body = bytearray(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b",", b'"', b"]", b"}", b":", b"\\", b"1", b"\xff", b" "])
        )
    with pytest.MonkeyPatch.context() as patched:
        at_once = outcome(bytes(body))
        patched.setattr(jsonlist, "WINDOW_BYTES", window)
        assert outcome(bytes(body)) == at_once


def outcome(body: bytes) -> object:
    try:
        return read(body)
    except BadRequest:
        return BadRequest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" " * 50,
        b'["a"' + b" " * 50,
        b'["a",' + b" " * 50 + b"]",
        b'["a"]' + b" " * 50 + b"1",
        b'{"messages":["a"],"messages":["b"],"c":"long enough for the window"}',
        b'{"c":1,"c":"long enough for the window"}',
        b'[{"value":"a","value":"b"},"long enough for the window"]',
        b'["\xff","long enough for the window"]',
        b'["long enough for the window\xf0\x9f"]',
        b"[NaN,1,2,3,4,5,6,7,8,9,0,1]",
        b"[" + b"1" * 5000 + b"]",
        b'{"messages" ["long enough for the window"]}',
        b'{messages: ["long enough for the window"]}',
        b'\xef\xbb\xbf["long enough for the window"]',
    ],
)
@pytest.mark.usefixtures("narrow")
def test_text_that_is_no_json_is_refused(body):
    with pytest.raises(BadRequest, match=r"^The body "):
        read(body)


@pytest.mark.usefixtures("narrow")
def test_depth_is_refused():
    """Python 3.11 and 3.12 refuse the depth itself, newer ones the number of values."""
    with pytest.raises((BadRequest, BodyTooLarge), match="body"):
        read(b"[" * 3000)


def test_an_error_names_its_place():
    body = b'["\xc3\xa9",' + b'"a",' * 10_000 + b"x]"
    with pytest.raises(BadRequest, match=r"near byte 40,0\d\d\.$"):
        read(body)


TOO_LARGE = {
    "text": (b'["' + b"a" * 3_000_000 + b'"]', BodyTooLarge),
    "text with an emoji": (b'["' + b"a" * 30_000_000 + "😀".encode() + b'"]', BodyTooLarge),
    "field": (b'{"messages":[],"other":"' + b"a" * 3_000_000 + b'"}', BodyTooLarge),
    "fields together": (
        b'{"a":"%(long)s","b":"%(long)s","c":"%(long)s"}' % {b"long": b"a" * 1_000_000},
        BodyTooLarge,
    ),
    "values in a message": (b'[{"value":[' + b'"",' * 1_000_000 + b'""]}]', BodyTooLarge),
    "lists in a field": (b'{"messages":{"a":[' + b"[]," * 1_000_000 + b"[]]}}", BodyTooLarge),
    "messages": (b"[" + b'"",' * 10_000_000 + b'""]', TooManyMessages),
    "nested": (b"[" + b"[" * 10_000_000, (BadRequest, BodyTooLarge)),
}


@pytest.mark.parametrize(("body", "error"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_too_large_bodies_are_refused_in_few_steps_and_little_memory(body, error):
    found = 0

    def add(run: list[Any]) -> None:
        nonlocal found
        found += len(run)
        if found > 1_000:
            raise TooManyMessages("There are too many.")

    tracemalloc.start()
    with pytest.raises(error):
        read_list(body, NAME, add, any_name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30_000_000


def test_an_unknown_name_is_refused_before_its_value_is_read():
    def refuse(name: str) -> None:
        if name == "other":
            raise BadRequest("There is no field other.")

    for end in (b'[{"a', b"{}}", b"1"):
        body = b'{"messages":["%s"],"other":%s' % (b"a" * 20_000, end)
        with pytest.raises(BadRequest, match="no field other"):
            read_list(body, NAME, lambda _: None, refuse)


def test_a_long_message_is_read():
    messages = ["a" * 1_500_000 + "😀", "b", "\n" * 500_000, {"value": 'x",' * 300_000}]
    body = json.dumps(messages, ensure_ascii=False).encode()
    assert read(body) == (messages, [])


def test_a_run_is_no_more_than_some_windows():
    runs: list[int] = []
    body = json.dumps(["ab"] * 100_000).encode()
    read_list(body, NAME, lambda run: runs.append(len(run)), any_name)
    assert sum(runs) == 100_000
    assert max(runs) <= 2 * jsonlist.WINDOW_BYTES / len('"ab",')


def test_the_consumer_of_values_may_refuse_more():
    def refuse(_: list[Any]) -> None:
        raise TooManyMessages("There are too many.")

    with pytest.raises(BrokerError, match="too many"):
        read_list(b'["a"]', NAME, refuse, any_name)

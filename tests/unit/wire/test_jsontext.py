import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadRequest
from broker.wire.jsontext import OBJECTS_MAX, parse

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50)
@given(values, st.booleans())
def test_json_is_read(value, ascii_only):
    try:
        body = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False).encode("utf-8")
    except (ValueError, UnicodeEncodeError):
        return
    assert parse(body, lists_max=100) == value


@given(st.lists(st.text(alphabet='[]"\\ a{}', max_size=8), max_size=8))
def test_brackets_in_strings_are_no_lists(texts):
    assert parse(json.dumps(texts).encode()) == texts


@pytest.mark.parametrize("body", [b"[[]]", b'{"a":[],"b":[]}', b'["\\"[",[]]', b'["\\\\",[]]'])
def test_lists_are_counted(body):
    assert parse(body, lists_max=2)
    with pytest.raises(BadRequest, match="lists"):
        parse(body, lists_max=1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'a':1}",
        b'{"a":1}x',
        b"NaN",
        b"-Infinity",
        b'{"a":1,"a":1}',
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"\x00{\x00}",
        b'"',
        b'"\\',
        b"[1,]",
        b"1" * 5000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(BadRequest):
        parse(body)


@pytest.mark.parametrize(
    "body", [b"[" + b"[]," * 300_000 + b"[]]", b"[" + b"{}," * 300_000 + b"{}]"]
)
def test_many_small_values_take_no_memory(body):
    tracemalloc.start()
    with pytest.raises(BadRequest, match="more"):
        parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(body)


def test_objects_are_counted():
    body = b"[" + b"{}," * (OBJECTS_MAX - 1) + b"{}]"
    assert parse(body) == [{}] * OBJECTS_MAX
    with pytest.raises(BadRequest, match="objects"):
        parse(body.replace(b"[", b"[{},"))


def test_numbers_can_be_kept_as_they_were_written():
    assert parse(b'{"a":1.50,"b":1e3,"c":007}'.replace(b"007", b"7"), number=str) == {
        "a": "1.50",
        "b": "1e3",
        "c": "7",
    }

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadRequest
from broker.wire.jsontext import BRACKETS_MAX, parse

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
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
    assert parse(body) == value


@given(st.lists(st.text(alphabet='[]"\\ a{},:', max_size=8), max_size=8))
def test_brackets_in_strings_are_no_values(texts):
    body = json.dumps(texts).encode()
    assert parse(body, values_max=len(texts) + 2) == texts


@given(values)
def test_a_value_passes_if_there_are_not_more(value):
    body = json.dumps(value).encode()
    if b"\\ud" not in body:
        assert parse(body, values_max=_count(value) + _count_containers(value)) == value


def _count(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def _count_containers(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(_count_containers, inner))


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"[[]]", 3),
        (b'{"a":[],"b":[]}', 5),
        (b'["\\"[",[]]', 4),
        (b'["\\\\",[]]', 4),
        (b"[1,2]", 3),
    ],
)
def test_values_are_counted(body, count):
    assert parse(body, values_max=count)
    with pytest.raises(BadRequest, match=f"more than {count - 1} "):
        parse(body, values_max=count - 1)


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
        b"[" * 5000,
    ],
)
def test_text_that_is_no_json_is_refused(body):
    with pytest.raises(BadRequest):
        parse(body)


def test_the_error_names_the_bound_that_was_passed():
    parse(b"[" + b"[]," * (BRACKETS_MAX - 2) + b"{}]")
    with pytest.raises(BadRequest, match="more than 2000 lists and objects"):
        parse(b"[" + b"[]," * (BRACKETS_MAX - 1) + b"{}]")
    with pytest.raises(BadRequest, match="more than 100000 JSON values"):
        parse(b"[" + b"1," * 100_000 + b"1]")


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 300_000 + b"[]]",
        b"[" + b"{}," * 300_000 + b"{}]",
        b"[" + b'"ab",' * 300_000 + b"1]",
        b"[" + (b"[" * 500 + b"]" * 500 + b",") * 300 + b"1]",
    ],
)
def test_many_small_values_take_no_memory(body):
    tracemalloc.start()
    with pytest.raises(BadRequest, match="more"):
        parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(body)


def test_numbers_can_be_kept_as_they_were_written():
    assert parse(b'{"a":1.50,"b":1e3,"c":007}'.replace(b"007", b"7"), number=str) == {
        "a": "1.50",
        "b": "1e3",
        "c": "7",
    }

"""Keys and headers as bytes, compared with an independent Avro implementation."""

import io
import pickle

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest
from broker.model import NO_HEADERS
from broker.wire import attributes
from broker.wire.varint import Malformed

SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Attributes",
        "fields": [
            {"name": "key", "type": ["null", "bytes"]},
            {"name": "headers", "type": {"type": "map", "values": "bytes"}},
        ],
    }
)
KEYS = st.none() | st.binary(max_size=100)
HEADERS = st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=100), max_size=5)


@given(KEYS, HEADERS)
def test_keys_and_headers_are_read_back(key, headers) -> None:
    assert attributes.decode(attributes.encode(key, headers)) == (key, headers)


@given(KEYS, HEADERS)
def test_keys_and_headers_are_avro(key, headers) -> None:
    encoded = attributes.encode(key, headers) or b"\0\0"
    read = fastavro.schemaless_reader(io.BytesIO(encoded), SCHEMA)
    assert read == {"key": key, "headers": headers}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMA, read)
    assert attributes.read(written.getvalue() + b"more", 0) == ((key, headers), len(encoded))


@given(KEYS, HEADERS)
def test_parts_are_the_same_as_bytes(key, headers) -> None:
    found, names, values = attributes.parts(attributes.encode(key, headers) or b"\0\0")
    assert (found, dict(zip(names, values, strict=True))) == (
        key,
        {name.encode(): value for name, value in headers.items()},
    )


@pytest.mark.parametrize(
    "body",
    [
        b"\0" + b"\x01\x08\x02a\x02b" + b"\x02\x02c\x02d" + b"\0",
        b"\0" + b"\x02\x02a\x02b" + b"\x02\x02c\x02d" + b"\0",
        b"\0" + b"\x84\0\x82\0a\x02b\x02c\x82\0d" + b"\0",
    ],
)
def test_parts_are_read_in_any_legal_form(body) -> None:
    assert attributes.parts(body) == (None, [b"a", b"c"], [b"b", b"d"])


def test_a_message_without_attributes_takes_no_bytes() -> None:
    assert attributes.encode(None, {}) == b""


def test_no_headers_can_be_pickled_and_are_one_value() -> None:
    assert pickle.loads(pickle.dumps(NO_HEADERS)) is NO_HEADERS == {}


def test_blocks_with_a_size_are_read() -> None:
    body = b"\0" + b"\x01\x08\x02a\x02b" + b"\x02\x02c\x02d" + b"\0"
    assert attributes.read(body, 0) == ((None, {"a": b"b", "c": b"d"}), len(body))


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"k" * (attributes.BYTES_MAX + 1), {}),
        (None, {"a": b"v" * attributes.BYTES_MAX}),
        (None, {str(number): b"" for number in range(attributes.HEADERS_MAX + 1)}),
        (None, {"": b""}),
        (None, {"n" * 256: b""}),
        (None, {"\udc80": b""}),
    ],
)
def test_too_large_attributes_are_refused(key, headers) -> None:
    with pytest.raises(BadRequest, match="headers"):
        attributes.encode(key, headers)


@pytest.mark.parametrize("body", [b"\x04\0", b"\0\x02\x02\xff\0\0", b"\x01\0"])
def test_malformed_attributes_are_refused(body) -> None:
    with pytest.raises(Malformed):
        attributes.read(body, 0)


@pytest.mark.parametrize(
    "body", [b"\0" + b"\x04\x02a\0\x02a\0" + b"\0", b"\0\xca\x01" + b"\x02a\0" * 101 + b"\0"]
)
def test_too_many_headers_and_names_that_come_twice_are_refused(body) -> None:
    with pytest.raises(BadRequest, match="headers"):
        attributes.read(body, 0)


@given(KEYS, HEADERS, st.data())
def test_a_cut_off_answer_is_never_read_as_whole(key, headers, data) -> None:
    encoded = attributes.encode(key, headers) or b"\0\0"
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(IndexError):
        attributes.read(encoded[:cut], 0)
    with pytest.raises(IndexError):
        attributes.parts(encoded[:cut])

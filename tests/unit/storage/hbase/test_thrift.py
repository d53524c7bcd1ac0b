"""Decoding of answers that thriftpy2 wrote: only whole answers are decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.thrift import TApplicationException, TMessageType

from broker.storage.hbase import thrift
from broker.storage.hbase.thrift import GatewayError, NotThrift, ShortAnswer
from tests.unit.storage.hbase.fake import IDL, message, reply

CELL = IDL.TColumnValue(family=b"e", qualifier=b"c", value=b"some value", timestamp=-7, type=4)
READ_CELL = {1: b"e", 2: b"c", 3: b"some value", 4: -7, 6: 4}
DESCRIPTOR = IDL.TTableDescriptor(
    tableName=IDL.TTableName(ns=b"n", qualifier=b"t"),
    columns=[IDL.TColumnFamilyDescriptor(name=b"e", attributes={}, maxVersions=1)],
    attributes={b"a": b"1", b"b": b""},
    durability=4,
)
ANSWERS = {
    "put": (reply("put"), None),
    "checkAndPut": (reply("checkAndPut", success=True), True),
    "checkAndMutate": (reply("checkAndMutate", success=False), False),
    "get": (
        reply("get", success=IDL.TResult(row=b"k", columnValues=[CELL, CELL])),
        {1: b"k", 2: [READ_CELL, READ_CELL]},
    ),
    "getScannerResults": (
        reply("getScannerResults", success=[IDL.TResult(columnValues=[CELL])] * 3),
        [{2: [READ_CELL]}] * 3,
    ),
    "listNamespaces": (reply("listNamespaces", success=["a", ""]), [b"a", b""]),
    "getThriftServerType": (reply("getThriftServerType", success=2), 2),
    "getTableDescriptor": (
        reply("getTableDescriptor", success=DESCRIPTOR),
        {
            1: {1: b"n", 2: b"t"},
            2: [{1: b"e", 2: {}, 10: 1}],
            3: {b"a": b"1", b"b": b""},
            4: 4,
        },
    ),
}


@pytest.mark.parametrize("api", ANSWERS)
def test_an_answer_is_decoded_to_its_value(api: str) -> None:
    answer, value = ANSWERS[api]
    assert thrift.answer(answer) == value


@pytest.mark.parametrize("api", ANSWERS)
def test_an_answer_is_whole_at_its_last_byte_and_not_before(api: str) -> None:
    whole, _ = ANSWERS[api]
    for size in range(len(whole)):
        with pytest.raises(ShortAnswer) as short:
            thrift.answer(whole[:size])
        assert size < short.value.needed <= len(whole)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(-(1 << 63), (1 << 63) - 1))
def test_cells_may_have_any_bytes(column: bytes, value: bytes, ms: int) -> None:
    cell = IDL.TColumnValue(family=b"h", qualifier=column, value=value, timestamp=ms)
    answer = reply("get", success=IDL.TResult(columnValues=[cell]))
    assert thrift.answer(answer) == {2: [{1: b"h", 2: column, 3: value, 4: ms}]}


def test_an_error_of_hbase_is_the_first_line_of_its_message() -> None:
    told = IDL.TIOError(message="java.io.IOException: no\n\tat Some.java:1", canRetry=True)
    with pytest.raises(GatewayError, match=r"^java.io.IOException: no$") as caught:
        thrift.answer(reply("putMultiple", io=told))
    assert caught.value.by_hbase
    with pytest.raises(GatewayError, match="no message"):
        thrift.answer(reply("putMultiple", io=IDL.TIOError()))


def test_an_error_of_the_gateway_itself_is_told_apart() -> None:
    error = TApplicationException(TApplicationException.INTERNAL_ERROR, "Internal error")
    with pytest.raises(GatewayError, match="Internal error") as caught:
        thrift.answer(message("get", TMessageType.EXCEPTION, error))
    assert not caught.value.by_hbase


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request",
        ANSWERS["put"][0] + b"\0",
        ANSWERS["put"][0][:-1] + b"\x63" + bytes(8),  # No such kind of value.
        ANSWERS["put"][0][:4] + b"\xff" * 20,  # A name of -1 bytes.
    ],
)
def test_bytes_that_are_no_answer_are_refused_at_once(answer: bytes) -> None:
    with pytest.raises(NotThrift):
        thrift.answer(answer)


@pytest.mark.parametrize("value", [b"value", b"k"])
def test_a_length_below_zero_is_refused_at_once(value: bytes) -> None:
    cell = IDL.TColumnValue(family=b"e", qualifier=b"c", value=b"value")
    whole = reply("get", success=IDL.TResult(row=b"k", columnValues=[cell]))
    length = len(value).to_bytes(4, "big") + value
    assert whole.count(length) == 1
    with pytest.raises(NotThrift, match="a length of -1"):
        thrift.answer(whole.replace(length, b"\xff" * 4 + value))

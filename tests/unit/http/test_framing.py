"""A request ends at the same place in whichever pieces its bytes arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest
from broker.http.framing import HEAD_BYTES_MAX, Chunks, HttpHead, head_of

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PING, HttpHead(0, len(PING), 1)),
        (b"\r\n\r\n" + PING, HttpHead(4, 4 + len(PING), 1)),
        (b"GET /a HTTP/1.0\r\n\r\n", HttpHead(0, 19, 0)),
        (b"PUT /a HTTP/1.1\r\nContent-Length: 12\r\n\r\nabc", HttpHead(0, 39, 1, 12, 15, 35)),
        (b"PUT /a HTTP/1.1\r\ncontent-length:12\r\nA: b\r\n\r\n", HttpHead(0, 44, 1, 12, 15, 34)),
        (
            b"PUT /a HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
            HttpHead(0, 47, 1, None, 15, 43),
        ),
        (b"PUT /a HTTP/1.1\r\nX-Content-Length: 12\r\n\r\n", HttpHead(0, 41, 1)),
        (b"PUT /a HTTP/1.1\r\nContent-Length-Hint: 5\r\n\r\n", HttpHead(0, 43, 1)),
        (b"PUT /a HTTP/1.1\r\nTransfer-Encoding2: gzip\r\n\r\n", HttpHead(0, 45, 1)),
    ],
)
def test_a_head_and_the_size_of_its_body(data: bytes, expected: HttpHead) -> None:
    assert head_of(data) == expected
    assert head_of(b"before" + data, 6) == HttpHead(
        expected.begin + 6,
        expected.end + 6,
        expected.minor,
        expected.length,
        *((6 + place if expected.framing_end else 0) for place in expected[4:]),
    )


def test_the_parser_behind_sees_no_body() -> None:
    data = b"\r\nPUT /a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\nA: b\r\n\r\nabcGET"
    head = head_of(data)
    assert head is not None
    assert head.without_body(data) == b"PUT /a HTTP/1.1\r\nHost: b\r\nA: b\r\n\r\n"
    assert data[head.end :] == b"abcGET"
    assert HttpHead(0, len(PING), 1).without_body(PING) is PING


@given(st.integers(0, len(PING) - 1), st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]))
def test_a_begun_head_is_waited_for(size: int, blank: bytes) -> None:
    assert head_of(blank + PING[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"\n",
        b"\x16\x03\x01\x02",
        b"GET  / HTTP/1.1\r\n",
        b"GET / HTTP/1.2\r\n",
        b"GET / HTTPS",
        b"G E T / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\n\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length : 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length\x00: 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: " + b"1" * 19 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n",
        PING[:-2] + b"A: " + b"b" * HEAD_BYTES_MAX,
        PING[:-2] + b"A: " + b"b" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_ambiguous_requests_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        head_of(data)


def chunked(pieces: list[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    st.sampled_from([b"0\r\n\r\n", b"0\r\nA: b\r\nC: d\r\n\r\n", b"00000\r\n\r\n"]),
    st.lists(st.integers(1, 20), min_size=1, max_size=50),
)
def test_chunks_are_the_same_however_they_come(
    pieces: list[bytes], end: bytes, sizes: list[int]
) -> None:
    data = chunked(pieces, end) + b"GET"
    chunks, found, at = Chunks(), [], 0
    for number in range(len(data)):
        if chunks.ended:
            break
        piece = data[at : at + sizes[number % len(sizes)]]
        taken = chunks.take(piece, 0, found)
        at += taken
        assert chunks.ended or taken == len(piece)
    assert b"".join(found) == b"".join(pieces)
    assert (chunks.ended, data[at:]) == (True, b"GET")


@pytest.mark.parametrize(
    "data",
    [
        b"g\r\n",
        b"-1\r\n",
        b"1\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na\r\r",
        b"1" * 600,
        b"f" * 16 + b"\r\n",
        b"0\r\n" + b"A: b\r\n" * 2000,
        b"1\r\na\r\n" * 1100,
    ],
)
def test_malformed_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        Chunks().take(data, 0, [])

"""Gzip is inflated in steps: any pieces give the same bytes, and never more than the bound."""

import gzip
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge
from broker.http.body import STEP_BYTES_MAX, Inflater


def inflated(inflater: Inflater, *pieces: bytes) -> bytes:
    body = bytearray()
    for piece in pieces:
        inflater.feed(piece)
        while inflater.has_more:
            room = inflater.step_bytes_max
            step = inflater.step()
            assert len(step) <= room <= STEP_BYTES_MAX
            body += step
    inflater.finish()
    return bytes(body)


def test_a_body_is_inflated_byte_by_byte() -> None:
    packed = gzip.compress(b"hello") + gzip.compress(b"") + gzip.compress(b" you")
    assert inflated(Inflater(100), *[bytes([byte]) for byte in packed]) == b"hello you"


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(0, 1500), max_size=5))
def test_pieces_may_be_cut_anywhere(members: list[bytes], cuts: list[int]) -> None:
    packed = b"".join([gzip.compress(member) for member in members])
    edges = [0, *sorted(cuts), len(packed)]
    pieces = [packed[a:b] for a, b in pairwise(edges)]
    assert inflated(Inflater(1000), *pieces) == b"".join(members)


@pytest.mark.parametrize("size", [STEP_BYTES_MAX, STEP_BYTES_MAX + 1, 3_000_000])
def test_large_bodies_come_in_steps(size: int) -> None:
    body = random.Random(7).randbytes(1 + size // 7) * 7
    packed = gzip.compress(body)
    assert inflated(Inflater(len(body)), packed) == body
    assert inflated(Inflater(len(body)), packed[:70_001], packed[70_001:]) == body


def test_inflating_stops_at_the_bound() -> None:
    inflater = Inflater(1_000_000)
    with pytest.raises(BodyTooLarge, match="1,000,000"):
        inflated(inflater, gzip.compress(bytes(50_000_000)))
    assert inflater.inflated == 1_000_001


def test_the_bound_counts_all_members() -> None:
    packed = gzip.compress(b"12345") + gzip.compress(b"67890")
    assert inflated(Inflater(10), packed) == b"1234567890"
    with pytest.raises(BodyTooLarge):
        inflated(Inflater(9), packed)


def test_an_empty_body_is_a_whole_gzip_and_half_a_member_is_not() -> None:
    inflater = Inflater(10)
    inflater.finish()
    inflater.feed(gzip.compress(b"xyz")[:11])
    assert inflater.step() == b""
    with pytest.raises(BadRequest, match="cut off"):
        inflater.finish()


def test_bytes_behind_a_member_must_be_a_member() -> None:
    with pytest.raises(BadRequest, match="not gzip"):
        inflated(Inflater(100), gzip.compress(b"x") + b"and more")

"""A node doubts the entries of other nodes: an odd entry ends no reading of the others."""

import json

import pytest

from broker.coordination.members import decode, encode
from broker.coordination.ports import NodeInfo

INFO = NodeInfo(7, "9f2c", "http://a:8080", "1", 1)


def test_a_node_is_read_as_it_was_written() -> None:
    assert decode("007", encode(INFO)) == INFO


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"no JSON",
        b"[]",
        json.dumps({**INFO._asdict(), "url": 5}).encode(),
        json.dumps({**INFO._asdict(), "incarnation": None}).encode(),
        json.dumps({**INFO._asdict(), "instance": "7"}).encode(),
        json.dumps({**INFO._asdict(), "instance": 8}).encode(),
    ],
)
def test_an_odd_entry_is_no_node(data: bytes) -> None:
    assert decode("007", data) is None

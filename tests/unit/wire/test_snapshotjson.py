import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest
from broker.model import POINTER_MAX, Snapshot
from broker.wire.snapshotjson import decode_snapshot, encode_snapshot
from broker.wire.transaction import encode_transaction

pointers = st.integers(0, POINTER_MAX)
snapshots = st.builds(
    Snapshot,
    transaction_id=pointers,
    read_pointer=pointers,
    write_pointer=pointers,
    invalids=st.lists(pointers, max_size=3),
    in_progress=st.lists(pointers, max_size=3),
    first_short_in_progress=pointers,
    long=st.booleans(),
    visibility=st.sampled_from(Snapshot.Visibility),
)


@given(snapshots)
def test_all_three_forms_say_the_same(snapshot):
    body = encode_transaction(snapshot)
    parts = json.loads(json.dumps(encode_snapshot(snapshot)))
    for form in (body.hex(), body.hex().upper(), base64.b64encode(body).decode(), parts):
        assert decode_snapshot(form) == snapshot


def test_most_parts_may_be_missing():
    expected = Snapshot(transaction_id=5, read_pointer=3)
    assert decode_snapshot({"transaction_id": 5, "read_pointer": "3"}) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_pointer": "5.0"},
        {"write_pointer": "05"},
        {"write_pointer": str(1 << 63)},
        {"write_pointer": (1 << 53) + 1},
        {"in_progress": [(1 << 60) + 1]},
        {"write_pointer": True},
        {"write_pointer": 1 << 64},
        {"read_pointer": None},
        {"invalids": 5},
        {"invalids": [None]},
        {"long": 1},
        {"visibility": 1},
        {"visibility": "ALL"},
        {"visibility": ["SNAPSHOT"]},
        {"readPointer": 5},
    ],
)
def test_wrong_parts_are_refused(wrong):
    with pytest.raises(BadRequest, match=r"^snapshot: "):
        decode_snapshot({"transaction_id": 5, "read_pointer": 3} | wrong)


@pytest.mark.parametrize("value", [None, 5, [], {}, {"read_pointer": 3}, "", "0a00", "é", "Cg=A"])
def test_json_that_is_no_snapshot_is_refused(value):
    with pytest.raises(BadRequest, match=r"^(snapshot|transaction): "):
        decode_snapshot(value)

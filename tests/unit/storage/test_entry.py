import binascii
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageCorrupt
from broker.model import LOG_KEY_BYTES, log_key, log_key_after, log_key_before
from broker.storage import attributed
from broker.storage import entry as entries
from broker.storage.attributed import ITEM_BYTES
from broker.storage.columns import (
    ENTRIES_END,
    column_from,
    has_life,
    is_rolled_column,
    last_of,
    pointer_of,
    rolled_column,
)
from broker.storage.entry import (
    ENTRY_BYTES_MAX,
    PLAIN,
    Mark,
    Shared,
    decode,
    decode_rolled,
    encode,
    encode_rolled,
    entries_of,
    merged,
    stub_of,
)
from broker.storage.page_entries import entries_in, joined
from broker.wire import attributes

ATTRIBUTED = Path(__file__).parents[2] / "data" / "storage" / "entries-with-attributes.txt"
FIXTURES = Path(__file__).parents[2] / "data" / "storage" / "entries.txt"

ROWS = st.builds(log_key, st.integers(0, (1 << 63) - 1), st.integers(0, 0xFFFF))
IDS = st.lists(ROWS, min_size=1, max_size=40, unique=True).map(sorted)
NUMBERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
SHARED = st.builds(Shared, NUMBERS, NUMBERS, NUMBERS, st.booleans())
MARKS = st.builds(
    Mark,
    st.integers(0, 255),
    st.binary(min_size=16, max_size=16),
    ROWS,
    ROWS,
    st.binary(min_size=32, max_size=32),
)


KEYED = attributes.encode(b"key", {"name": b"value"})
ATTRIBUTES = st.sampled_from([b"", b"", KEYED, attributes.encode(None, {"h": bytes(3000)})])


@st.composite
def made(draw, shared=SHARED, payload_max=600):
    ids = draw(IDS)
    payloads = [draw(st.binary(max_size=payload_max)) for _ in ids]
    given = [draw(ATTRIBUTES) for _ in ids] if draw(st.booleans()) else []
    epoch = draw(st.integers(0, (1 << 32) - 1))
    found = entries_of(epoch, ids, payloads, draw(shared), given)
    assert attributes_in(found) == (given or [b""] * len(ids))
    return ids, payloads, found


def attributes_in(found):
    """Return the attributes of each message."""
    places = [dict(entry.attributes(0, entry.count)) for entry in found]
    return [
        of.get(place, b"")
        for entry, of in zip(found, places, strict=True)
        for place in range(entry.count)
    ]


def parts(entry):
    payloads = [] if entry.is_stub else [entry.payload(n) for n in range(entry.count)]
    ids = [] if entry.is_stub else entry.ids()
    fields = (entry.flags, entry.epoch, entry.first, entry.last, entry.count, entry.items)
    shared = (entry.pointer, entry.lifetime_ms, entry.number, tuple(entry.marks))
    return (*fields, *shared, ids, payloads, entry.attributed)


@given(made(), st.lists(MARKS, max_size=3))
def test_an_entry_comes_back_as_it_was(given_, marks):
    ids, payloads, found = given_
    found[0].marks = tuple(marks)
    again = [decode(encode(entry)) for entry in found]
    assert [parts(entry) for entry in again] == [parts(entry) for entry in found]
    assert [row for entry in again for row in entry.ids()] == ids
    assert [e.payload(n) for e in again for n in range(e.count)] == payloads
    assert sum(entry.payload_bytes() for entry in again) == sum(map(len, payloads))
    for entry in again:
        assert [entry.id(place) for place in range(entry.count)] == entry.ids()


@given(made(), st.lists(MARKS, max_size=50))
def test_the_size_in_a_page_is_that_of_the_stored_entry(given_, marks):
    _, _, found = given_
    found[0].marks = tuple(marks)
    for entry in found:
        stored = len(encode(entry)) - 2 * entry.count
        assert stored <= entry.stored_bytes <= stored + 2 * entry.count + 64 + entry.count


@given(made(), st.data())
def test_a_changed_byte_is_found(given_, data):
    value = bytearray(encode(given_[2][0]))
    place = data.draw(st.integers(0, len(value) - 1))
    value[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageCorrupt):
        decode(bytes(value))


@given(made(), st.data())
def test_a_truncated_value_is_found(given_, data):
    value = encode(given_[2][0])
    with pytest.raises(StorageCorrupt):
        decode(value[: data.draw(st.integers(0, len(value) - 1))])


def test_another_format_is_refused():
    plain, attributed = (
        encode(entries_of(1, [log_key(1, 1)], [b"x"], attributes=each)[0]) for each in ((), [KEYED])
    )
    for form, value in ((3, plain), (2, plain), (1, attributed), (3, attributed)):
        body = bytes([form]) + value[1:-4]
        with pytest.raises(StorageCorrupt, match=f"format {form}"):
            decode(body + binascii.crc32(body).to_bytes(4, "little"))


@given(made(), st.lists(MARKS, max_size=2))
def test_a_stub_keeps_the_header(given_, marks):
    entry = given_[2][0]
    entry.marks = tuple(marks)
    stub = decode(encode(stub_of(entry)))
    assert (stub.is_stub, entry.is_stub, stub.items, stub.attributed) == (True, False, b"", b"")
    assert encode(stub)[0] == entries.FORMAT
    assert parts(stub)[1:5] == parts(entry)[1:5]
    assert parts(stub)[6:10] == parts(entry)[6:10]
    assert stub.column == entry.column
    assert [stub.place_at(stub.first), stub.place_after(stub.first)] == [stub.count] * 2


# Sizes.


@given(made(payload_max=6000))
def test_an_entry_has_limited_bytes_or_one_message(given_):
    for entry in given_[2]:
        assert entry.count == 1 or entry.content_bytes <= ENTRY_BYTES_MAX
    for entry, following in pairwise(given_[2]):
        # Each entry is full: the first message of the next one does not fit in.
        first = following.run_bytes(0, 1)
        first += sum(ITEM_BYTES + len(each) for _, each in following.attributes(0, 1))
        assert entry.content_bytes + first > ENTRY_BYTES_MAX


def test_a_message_larger_than_an_entry_is_alone():
    ids = [log_key(1, n) for n in range(3)]
    found = entries_of(1, ids, [b"a", bytes(1 << 20), b"b"])
    assert [entry.count for entry in found] == [1, 1, 1]
    large = decode(encode(found[1]))
    assert large.payload(0) == bytes(1 << 20)
    assert (large.ids(), large.id(0), large.message_id(0)[:LOG_KEY_BYTES]) == (
        ids[1:2],
        ids[1],
        ids[1],
    )
    assert encode(large) == encode(found[1]), "an entry that was read as a view is the same"
    assert large.payload_view(0) == large.payload(0)


# Places, compared with a model.


@given(made(), ROWS)
def test_places_match_a_model(given_, row):
    for entry in given_[2]:
        ids = entry.ids()
        for wanted in (row, *ids[:3], *map(log_key_after, ids[:3]), *map(log_key_before, ids[-3:])):
            assert entry.place_at(wanted) == sum(each < wanted for each in ids)
            assert entry.place_after(wanted) == sum(each <= wanted for each in ids)


@given(made(), st.data())
def test_runs_and_byte_limits_match_a_model(given_, data):
    entry = given_[2][0]
    first = data.draw(st.integers(0, entry.count - 1))
    stop = data.draw(st.integers(first + 1, entry.count))
    bytes_max = data.draw(st.integers(0, len(entry.items) + 10))
    items = [entry.run(place, place + 1) for place in range(entry.count)]
    assert b"".join(items) == entry.items
    assert entry.run(first, stop) == b"".join(items[first:stop])
    reached = entry.stop_within(first, stop, bytes_max)
    assert first < reached <= stop
    assert reached == first + 1 or len(entry.run(first, reached)) <= bytes_max
    assert reached == stop or len(entry.run(first, reached + 1)) > bytes_max


@given(made(st.just(Shared(is_stored=True))), ROWS)
def test_stored_items_are_framed_under_their_reference(given_, reference):
    ids, payloads, found = given_
    whole = entries_of(1, [reference] * len(ids), payloads)
    tails = b"".join([part for entry in found for part in entry.framed(reference, 0, entry.count)])
    with_tails = b"".join(entry.items for entry in whole)
    assert len(tails) == len(with_tails)
    assert tails[1 : 1 + 2 * LOG_KEY_BYTES] == reference + ids[0]


@given(made(st.just(PLAIN), payload_max=3000))
def test_joined_entries_read_as_one(given_):
    ids, payloads, found = given_
    one = joined(found)
    assert (one.ids(), one.count, one.first, one.last) == (ids, len(ids), ids[0], ids[-1])
    assert [one.payload(place) for place in range(one.count)] == payloads
    assert one.items == b"".join(entry.items for entry in found)
    assert attributes_in([one]) == attributes_in(found)


@pytest.mark.slow
@given(made(), st.data())
def test_part_of_an_entry_has_its_attributes(given_, data):
    ids, _, found = given_
    after, through = sorted((data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))))
    every = dict(zip(ids, attributes_in(found), strict=True))
    for entry in found:
        part = entry.within(after, through)
        assert attributes_in([part]) == [every[row] for row in part.ids()]


@given(st.lists(ATTRIBUTES, min_size=1, max_size=30), st.data())
def test_truncated_attributes_are_found(given_, data):
    section = attributed.pack(given_)
    whole = {section[:size] for size in _ends(section)}
    cut = section[: data.draw(st.integers(0, len(section)))]
    if cut in whole:
        assert attributed.pack([each for _, each in attributed.unpack(cut)]) or not cut
    else:
        with pytest.raises(StorageCorrupt):
            list(attributed.unpack(cut))


def _ends(section):
    sizes = [ITEM_BYTES + len(each) for _, each in attributed.unpack(section)]
    return accumulate(sizes, initial=0)


# Columns.


@given(st.lists(made(), min_size=1, max_size=4), ROWS)
def test_columns_sort_by_last_id_and_a_rolled_cell_follows_its_entry(given_, row):
    every = {entry.last: entry for _, _, found in given_ for entry in found}
    columns = sorted(
        column
        for entry in every.values()
        for column in (
            entry.column,
            *((rolled_column(entry.column),) * (entry.pointer is not None)),
        )
    )
    plain = [column for column in columns if not is_rolled_column(column)]
    assert [last_of(column) for column in plain] == sorted(every)
    for before, column in pairwise(columns):
        if is_rolled_column(column):
            assert column == rolled_column(before)
    for column in plain:
        entry = every[last_of(column)]
        assert pointer_of(column) == entry.pointer
        assert has_life(column) == (entry.lifetime_ms is not None)
        assert column < ENTRIES_END
        assert (column >= column_from(row)) == (entry.last >= row)


# Rollbacks.


RANGES = st.lists(st.tuples(ROWS, ROWS).map(lambda ends: (min(ends), max(ends))), max_size=8)


@given(RANGES, st.lists(ROWS, max_size=8))
def test_merged_ranges_have_the_same_ids(ranges, rows):
    out = merged(ranges)
    assert decode_rolled(encode_rolled(out)) == out
    assert all(one[1] < other[0] for one, other in pairwise(out))
    for row in (*rows, *(end for each in ranges for end in each)):
        is_in = any(first <= row <= last for first, last in ranges)
        assert any(first <= row <= last for first, last in out) == is_in


@given(RANGES.filter(bool), st.data())
def test_a_damaged_rolled_cell_is_found(ranges, data):
    value = bytearray(encode_rolled(ranges))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 0x40
    with pytest.raises(StorageCorrupt):
        decode_rolled(bytes(value))


def test_a_rolled_cell_of_a_wrong_length_is_found():
    with pytest.raises(StorageCorrupt):
        decode_rolled(entries.checked(b"abc"))


def test_entries_are_read_with_their_rollbacks():
    one, two = (entries_of(1, [log_key(n, 0)], [b"x"], Shared(pointer=n))[0] for n in (1, 2))
    ranges = ((one.first, one.last),)
    cells = [
        (one.column, encode(one)),
        (rolled_column(one.column), encode_rolled(ranges)),
        (two.column, encode(two)),
    ]
    assert [entry.rolled for entry in entries_in(cells)] == [ranges, ()]
    assert [entry.is_rolled_back(one.first) for entry in entries_in(cells)] == [True, False]
    assert [entry.last for entry in entries_in(cells[1:])] == [two.last]


def test_an_entry_in_the_column_of_another_is_found():
    one, two = (entries_of(1, [log_key(n, 0)], [b"x"])[0] for n in (1, 2))
    with pytest.raises(StorageCorrupt, match="another last id"):
        list(entries_in([(one.column, encode(two))]))


# Stored bytes that every later release must read.


def samples():
    ids = [log_key(1_700_000_000_000, n) for n in (0, 1, 300)]
    bodies = [b"", b"two", bytes(200)]
    mark = Mark(1, b"k" * 16, ids[0], ids[-1], b"b" * 32)
    plain = entries_of(7, ids, bodies)[0]
    plain.marks = (mark,)
    tied = entries_of(7, ids, bodies, Shared(pointer=-5, lifetime_ms=60_000))[0]
    reference = entries_of(7, ids[:1], [b""], Shared(pointer=9, number=9))[0]
    stored = entries_of(7, ids, bodies, Shared(is_stored=True))[0]
    return [plain, tied, reference, stored, stub_of(tied)]


def attributed_samples():
    ids = [log_key(1_700_000_000_000, n) for n in (0, 1, 300)]
    bodies, given_ = [b"", b"two", bytes(200)], [KEYED, b"", attributes.encode(b"", {})]
    mark = Mark(1, b"k" * 16, ids[0], ids[-1], b"b" * 32)
    plain = entries_of(7, ids, bodies, attributes=given_)[0]
    plain.marks = (mark,)
    tied = entries_of(7, ids, bodies, Shared(pointer=-5, lifetime_ms=60_000), given_)[0]
    stored = entries_of(7, ids, bodies, Shared(is_stored=True), given_)[0]
    return [plain, tied, stored]


def test_the_bytes_of_entries_with_attributes_stay_the_same():
    lines = [bytes.fromhex(line) for line in ATTRIBUTED.read_text().split()]
    assert [line[0] for line in lines] == [2] * len(lines)
    assert [encode(entry) for entry in attributed_samples()] == lines
    assert [parts(decode(line)) for line in lines] == [parts(e) for e in attributed_samples()]


def test_the_bytes_of_entries_stay_the_same():
    lines = [bytes.fromhex(line) for line in FIXTURES.read_text().split()]
    assert [encode(entry) for entry in samples()] == lines[: len(samples())]
    assert [parts(decode(line)) for line in lines[:-1]] == [parts(entry) for entry in samples()]
    assert decode_rolled(lines[-1]) == ((log_key(1, 1), log_key(2, 2)),)

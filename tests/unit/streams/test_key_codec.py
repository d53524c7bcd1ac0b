"""Keys as bytes: equal keys have equal bytes, different keys have different ones, and each is read back."""

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.streams.key_codec import decode_key, encode_key


@dataclass(frozen=True)
class Place:
    town: str
    number: int


@dataclass
class Square:
    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.side**2


@dataclass(kw_only=True)
class Named:
    name: str


@dataclass
class Once:
    """Its fields are not what it is made of."""

    text: str

    def __post_init__(self) -> None:
        self.text += "!"


@dataclass
class Refusing(Once):
    def __post_init__(self) -> None:
        if not self.text.islower():
            raise ValueError
        self.text = self.text.upper()


class Pair(NamedTuple):
    one: Any
    other: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Grade(enum.IntEnum):
    GOOD = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.sampled_from([*Colour, *Grade])
    | st.builds(Place, st.text(), st.integers())
    | st.dates()
    | st.datetimes()
    | st.decimals(allow_nan=False)
)
KEYS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(LEAVES, inner, max_size=3)
    ),
    max_leaves=8,
)


def shape(key: Any) -> Any:
    """Return an identity of a key in which equal values of different types differ."""
    match key:
        case Place():
            return Place, key
        case dict():
            return dict, frozenset((shape(name), shape(value)) for name, value in key.items())
        case list() | tuple():
            return type(key), tuple(map(shape, key))
        case _:
            return type(key), key


@given(KEYS)
def test_a_key_is_read_back(key) -> None:
    assert shape(decode_key(encode_key(key))) == shape(key)


@pytest.mark.slow
@given(KEYS, KEYS)
def test_keys_have_the_same_bytes_when_they_are_the_same(one, other) -> None:
    assert (encode_key(one) == encode_key(other)) == (shape(one) == shape(other))


def test_the_bytes_are_those_of_earlier_releases() -> None:
    """State is found by them."""
    assert encode_key(("a", 1)) == b"(\x00\x00\x00\x0cs\x00\x00\x00\x01ai\x00\x00\x00\x011"


def test_a_dict_has_no_order() -> None:
    mixed = {1: "a", "1": "b", None: "c", (1,): "d"}
    assert encode_key(mixed) == encode_key(dict(reversed(mixed.items())))
    assert decode_key(encode_key(mixed)) == mixed


def test_equal_numbers_of_different_types_are_different_keys() -> None:
    ones = [1, 1.0, True, "1", b"1", Grade.GOOD, Colour.RED, (1,), [1], Decimal(1)]
    assert len({encode_key(one) for one in ones}) == len(ones)


def test_equal_numbers_and_times_are_the_same_key() -> None:
    assert encode_key(0.0) == encode_key(-0.0)
    assert encode_key(Decimal("1.0")) == encode_key(Decimal(1))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    same = noon.astimezone(timezone(timedelta(hours=2)))
    assert encode_key(noon) == encode_key(same)
    assert decode_key(encode_key(same)) == noon
    assert encode_key(date(2026, 1, 1)) != encode_key(datetime(2026, 1, 1))  # noqa: DTZ001 - On purpose.


def test_a_key_that_contains_the_codecs_own_bytes_is_read_back() -> None:
    keys = ["a&&b", "a|b", "", "&&", "a\x00b", ("a", "b"), ("a&&b",), "\ud800"]
    assert [decode_key(encode_key(key)) for key in keys] == keys


def inner_class() -> Any:
    @dataclass
    class Hidden:
        x: int

    return Hidden(1)


@pytest.mark.parametrize(
    "wrong",
    [
        object(),
        {1, 2},
        (1, {2}),
        OrderedDict(a=1),
        Place,
        bytearray(b"a"),
        1j,
        inner_class(),
        Square(2),
        Named(name="a"),
        Once("a"),
        Refusing("a"),
        Rights.READ | Rights.WRITE,
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_a_key_that_cannot_be_read_back_is_refused_at_once(wrong) -> None:
    with pytest.raises(TypeError, match="can't be a key"):
        encode_key(wrong)


@pytest.mark.parametrize("cut", [b"", b"s", b"s\x00\x00\x00\x02a", b"Z\x00\x00\x00\x00"])
def test_bytes_of_no_key_are_refused(cut) -> None:
    with pytest.raises(ValueError, match="key"):
        decode_key(cut)
    with pytest.raises(ValueError, match="more behind"):
        decode_key(encode_key(1) + b"x")

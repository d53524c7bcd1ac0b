import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadRequest, BodyTooLarge
from broker.model import Topic, TopicId, TransactionUse
from broker.topics.registry import TopicRecord
from broker.wire.topics import (
    BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_names,
    encode_properties,
)

DEFAULTS = {"ttl": "604800"}
NAME = TopicId("ns", "t")


def decode(value: object) -> dict[str, str]:
    return decode_properties(json.dumps(value).encode(), DEFAULTS, NAME)


def stored(properties: dict[str, str], generation: int = 1) -> Topic:
    return TopicRecord(generation, deleted=False, properties=properties).topic(NAME)


def test_an_empty_body_gets_all_defaults():
    assert decode_properties(b"", DEFAULTS, NAME) == DEFAULTS
    assert decode_properties(b"{}", DEFAULTS, NAME) == DEFAULTS


@pytest.mark.parametrize("letter", ["a", "é", "😀", "\n"])
def test_properties_have_a_bound_of_bytes_together(letter):
    names = sum(len(name) + len(value) for name, value in DEFAULTS.items()) + len("own")
    count, rest = divmod(PROPERTIES_BYTES_MAX - names, len(letter.encode()))
    text = letter * count + "a" * rest
    assert decode({"own": text})["own"] == text
    with pytest.raises(BodyTooLarge, match=r"65536 bytes.*65537"):
        decode({"own": text + "a"})
    with pytest.raises(BodyTooLarge):
        decode({"own": text, "n": ""})
    with pytest.raises(BodyTooLarge):
        decode_properties(b"", {**DEFAULTS, "own": text + "a"}, NAME)


def test_a_long_body_with_properties_is_not_even_read():
    with pytest.raises(BodyTooLarge, match="524288 bytes"):
        decode_properties(b"[" * (BODY_BYTES_MAX + 1), DEFAULTS, NAME)
    many = {str(number): "" for number in range(11_000)}
    with pytest.raises(BadRequest, match="10000 JSON values"):
        decode(many)


def test_the_longest_properties_may_be_written_as_escapes():
    count = PROPERTIES_BYTES_MAX - len("ttl604800own")
    body = b'{"own":"' + b"\\u0061" * count + b'"}'
    assert decode_properties(body, DEFAULTS, NAME)["own"] == "a" * count


def test_plain_values_become_the_strings_that_they_were_written_as():
    body = b'{"ttl":7,"x":true,"y":1.50,"z":1e3,"n":-0,"own":"key"}'
    assert decode_properties(body, DEFAULTS, NAME) == {
        "ttl": "7",
        "x": "true",
        "y": "1.50",
        "z": "1e3",
        "n": "-0",
        "own": "key",
    }


def test_a_sent_generation_is_checked_and_forgotten():
    assert decode({"generation": "5"}) == DEFAULTS
    assert decode({"generation": -5}) == DEFAULTS


@pytest.mark.parametrize("ttl", ["1", "2147483647", "+7", "007"])
def test_a_ttl_is_kept_as_it_was_sent(ttl):
    properties = decode({"ttl": ttl})
    assert properties == {"ttl": ttl}
    assert stored(properties).ttl_s == int(ttl)


@pytest.mark.parametrize("use", TransactionUse)
def test_the_use_of_transactions(use):
    assert stored(decode({"transactions": use.value})).transactions is use
    assert stored(DEFAULTS).transactions is TransactionUse.OPTIONAL


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *(
            ({"ttl": ttl}, "ttl")
            for ttl in (0, -1, 1 << 31, "", "x", "7.0", 1.5, " 7", "\u0667", True)
        ),
        ({"ttl": 10**40}, "ttl"),
        *(({"generation": generation}, "generation") for generation in (0, "", "x", 1 << 31, 1.5)),
        ({"transactions": "sometimes"}, "transactions"),
        ({"transactions": True}, "transactions"),
        ({"a": {}}, "a"),
        ({"a": None}, "a"),
        ({"a": "\ud800"}, "'a'"),
        ({"\ud800": "a"}, r"'\\ud800'"),
    ],
)
def test_wrong_values_name_the_property(value, name):
    with pytest.raises(BadRequest, match=rf"^{name}: |^The {name} property |values\. {name}: "):
        decode(value)


@pytest.mark.parametrize("body", [b"null", b"[]", b"1", b'"a"', b"{", b'{"a":[]}', b" ", b"\xff"])
def test_other_values_than_an_object_of_plain_values_are_refused(body):
    with pytest.raises(BadRequest):
        decode_properties(body, DEFAULTS, NAME)


def test_a_ttl_is_required():
    with pytest.raises(BadRequest, match=r"^The ttl property is missing"):
        decode_properties(b"", {}, NAME)


def test_properties_are_compact_sorted_strings():
    topic = stored(DEFAULTS)
    assert encode_properties(topic) == b'{"generation":"1","ttl":"604800"}'
    assert topic == Topic(NAME, 1, DEFAULTS, 604800, TransactionUse.OPTIONAL)


def test_the_generation_shown_is_the_topic_s():
    topic = stored({**DEFAULTS, "generation": "1"}, generation=3)
    assert json.loads(encode_properties(topic)) == {**DEFAULTS, "generation": "3"}


@given(st.dictionaries(st.text(), st.text()))
def test_every_property_is_given_back(properties):
    sent = {**properties, "ttl": "5", "transactions": "required", "generation": "1"}
    try:
        body = json.dumps(sent, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    topic = stored(decode_properties(body, DEFAULTS, NAME), generation=2)
    assert json.loads(encode_properties(topic)) == {**sent, "generation": "2"}


def test_names_are_listed_in_the_order_of_keys():
    assert encode_names(["aa", "a", "a1", "a-b", "a_"]) == b'["a-b","a1","a","a_","aa"]'
    assert encode_names([]) == b"[]"

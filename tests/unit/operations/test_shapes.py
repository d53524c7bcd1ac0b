"""From one declaration: the schema, the check of what a client sends, and the check of what a server answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

import pytest
from jsonschema import Draft202012Validator
from typing_extensions import TypedDict

from broker.coordination.ports import Contact
from broker.operations import replies, sent
from broker.operations.shapes import Rule, ShapeName, fits, forms_of, name_of, problem, schema_of


class Part(TypedDict):
    a: int


class Whole(TypedDict):
    text: str
    count: NotRequired[int | None]
    share: NotRequired[float]
    flag: NotRequired[bool]
    kind: NotRequired[Literal["x", "y"]]
    word: NotRequired[Annotated[str, Rule(enum=["up", "down"], says="up or down")]]
    name: NotRequired[Annotated[str, Rule(minLength=1)]]
    several: NotRequired[Annotated[list[str], Rule(minItems=1, maxItems=2)]]
    by_name: NotRequired[dict[str, int]]
    part: NotRequired[Part | None]
    any: NotRequired[object]


RIGHT: list[dict[str, Any]] = [
    {"text": ""},
    {"text": "a", "count": None, "share": 1, "flag": True, "kind": "y", "word": "up", "name": "n"},
    {"text": "a", "count": 7, "share": 0.5, "several": ["a"], "by_name": {"a": 1}, "any": [None]},
    {"text": "a", "part": {"a": 1}},
    {"text": "a", "part": None},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "text: is missing; it must be valid Unicode text."),
    ({"text": 1}, "text: must be valid Unicode text, not 1."),
    ({"text": None}, "text: must be valid Unicode text, not null."),
    ({"text": "a", "count": 1.5}, "count: must be a whole number or null, not 1.5."),
    ({"text": "a", "count": True}, "count: must be a whole number or null, not True."),
    ({"text": "a", "share": True}, "share: must be a number, not True."),
    ({"text": "a", "flag": 1}, "flag: must be true or false, not 1."),
    ({"text": "a", "kind": 5}, "kind: must be x or y, not 5."),
    ({"text": "a", "several": "b"}, "several: must be a list, not 'b'."),
    ({"text": "a", "by_name": []}, "by_name: must be an object, not a list of 0."),
    ({"text": "a", "part": 7}, "part: must be an object or null, not 7."),
]
WRONG_FOR_A_SERVER: list[tuple[dict[str, Any], str]] = [
    ({"text": "\ud800"}, "text: must be valid Unicode text, not '\\ud800'."),
    ({"text": "a", "kind": "z"}, "kind: must be x or y, not 'z'."),
    ({"text": "a", "word": "left"}, "word: must be up or down, not 'left'."),
    ({"text": "a", "name": ""}, "name: must be valid Unicode text, not ''."),
    ({"text": "a", "several": []}, "several: must be a list, not a list of 0."),
    ({"text": "a", "several": ["a", "b", "c"]}, "several: must be a list, not a list of 3."),
]
WRONG_FOR_A_CLIENT: list[dict[str, Any]] = [
    {"text": "a", "several": [1]},
    {"text": "a", "by_name": {"a": "b"}},
    {"text": "a", "part": {}},
]
SCHEMA = Draft202012Validator(schema_of(Whole))


@pytest.mark.parametrize("value", RIGHT)
def test_a_right_value_fits_everywhere(value: dict[str, Any]) -> None:
    assert problem(value, Whole) is None
    assert fits(value, Whole)
    assert SCHEMA.is_valid(value)


@pytest.mark.parametrize(("value", "told"), WRONG)
def test_a_wrong_value_fits_nowhere(value: dict[str, Any], told: str) -> None:
    assert problem(value, Whole) == told
    assert not fits(value, Whole)
    assert not SCHEMA.is_valid(value)


@pytest.mark.parametrize(("value", "told"), WRONG_FOR_A_SERVER)
def test_a_server_checks_words_and_sizes(value: dict[str, Any], told: str) -> None:
    assert problem(value, Whole) == told
    assert fits(value, Whole), "a later server may know more"


@pytest.mark.parametrize("value", WRONG_FOR_A_CLIENT)
def test_a_client_looks_into_lists_and_objects(value: dict[str, Any]) -> None:
    assert not fits(value, Whole)
    assert problem(value, Whole) is None, "its reader looks into it, some items at a time"


def test_a_later_server_may_answer_more_fields() -> None:
    assert fits({"text": "a", "new": 1}, Whole)
    assert not fits([], Whole)


def test_names_and_forms() -> None:
    assert (name_of(Whole), name_of(list[str])) == ("Whole", None)
    assert name_of(Annotated[list[str], ShapeName("Names")]) == "Names"
    assert forms_of(sent.TruncateSent) == (sent.TruncatedIds, sent.TruncatedBefore)
    assert forms_of(Whole) == (Whole,)


def test_the_words_of_a_contact_are_those_of_the_coordinator() -> None:
    assert schema_of(replies.Contact) == {"enum": [each.value for each in Contact]}

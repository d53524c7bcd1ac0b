"""The list of differences covers exactly the requests and answers that it names, and finds its unused entries."""

import pytest

from tests.conformance.differences import Difference, Differences, load
from tests.conformance.script import Exchange, View

EQUAL = View(200, "", "length", False, "", "")
REFUSED = View(400, "text/plain", "length", False, "", "no")
ENTRY = Difference(
    name="it is refused",
    source="a sentence",
    requests=("s: publish*", "s: store"),
    original={"status": 200, "type": "", "body": ""},
    ours={"status": 400, "type": "text/plain", "body": "~n.*"},
)


def explained(request: str, ours: View, *, expected: str | None = None) -> bool:
    differences = Differences((ENTRY,))
    return differences.explain(request, Exchange("", EQUAL), Exchange("", ours, expected))


def test_equal_answers_need_no_entry() -> None:
    assert explained("any: thing", EQUAL)


def test_an_entry_covers_only_the_requests_that_it_names() -> None:
    assert explained("s: publish t", REFUSED)
    assert explained("s: store", REFUSED)
    assert not explained("s: store t", REFUSED)
    assert not explained("other: publish t", REFUSED)


@pytest.mark.parametrize(
    "ours",
    [
        REFUSED._replace(status=500),
        REFUSED._replace(body="yes"),
        REFUSED._replace(closed=True),
        EQUAL._replace(status=400),
    ],
)
def test_an_entry_covers_no_other_answers(ours: View) -> None:
    assert not explained("s: publish t", ours)


def test_unused_patterns_are_found() -> None:
    differences = Differences((ENTRY,))
    assert len(differences.unused()) == 2
    assert differences.explain("s: store", Exchange("", EQUAL), Exchange("", REFUSED))
    assert differences.unused() == ["it is refused: s: publish*"]


def test_every_entry_has_a_source_and_requests() -> None:
    assert all(entry.source and entry.requests for entry in load().entries)

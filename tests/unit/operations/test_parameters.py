import pytest

from broker.errors import BadRequest
from broker.operations.operation import choice, whole


def test_whole_numbers_have_bounds() -> None:
    number = whole("n", "A number.", 1, 9, 5)
    assert (number.of({"n": "7"}), number.of({})) == (7, 5)
    assert number.of({"n": "12"}, most=20) == 12
    for text in ("0", "10", "-1", "+1", "1.0", "", " 1", "x", "9" * 5000, "\uff11"):
        with pytest.raises(BadRequest, match="n must be a whole number from 1 to 9"):
            number.of({"n": text})


def test_choices_are_named_when_none_fits() -> None:
    order = choice("order", "The order.", "asc", "desc")
    assert (order.of({}), order.of({"order": "desc"})) == ("asc", "desc")
    with pytest.raises(BadRequest, match="asc, desc"):
        order.of({"order": "up"})

"""Tables have an order, and count their operations."""

import random

import pytest

from chaos.checkers.facts import ShownRow
from chaos.checkers.tables import Tables, ValueTable


@pytest.fixture
def tables():
    return Tables()


def test_a_value_comes_back_as_it_was(tables):
    table = ValueTable(tables)
    table.put("a", ShownRow("payload", None, 7))
    assert table.get("a") == ShownRow("payload", None, 7)
    assert isinstance(table.get("a"), ShownRow)
    assert table.get("b") is None


def test_tables_are_apart(tables):
    one, other = ValueTable(tables), ValueTable(tables)
    one.put("a", (1,))
    assert other.get("a") is None
    assert list(other.between("", "z")) == []


def test_keys_have_an_order(tables):
    chance = random.Random(1)
    table = ValueTable(tables)
    keys = [f"{number:03}" for number in range(50)]
    for number, key in enumerate(chance.sample(keys, 50)):
        table.put(key, (number,))
        if number % 7 == 0:
            assert table.count("", "z") == number + 1
    assert [key for key, _ in table.between("", "z")] == keys
    assert [key for key, _ in table.between("010", "012")] == ["011", "012"]
    assert table.count("010", "012") == 2
    assert table.count("012", "010") == 0
    assert (table.following("010"), table.following("049")) == ("011", None)


def test_a_value_is_replaced(tables):
    table = ValueTable(tables)
    for number in range(3):
        table.put("a", (number,))
    assert list(table.between("", "z")) == [("a", (2,))]


def test_steps_count_the_table_operations(tables):
    table = ValueTable(tables)
    table.put("a", (1,))
    table.get("a")
    list(table.between("", "z"))
    assert tables.steps >= 3

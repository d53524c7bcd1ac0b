from pathlib import Path
from unittest.mock import Mock

import pytest

from broker.storage.leveldb.database import Database, Options
from broker.storage.leveldb.layout import cells_prefix, head_key
from broker.storage.leveldb.round import ChangeRequest, Postponed, RecentHeads, Round
from broker.storage.table import HEAD, Space

ROW = b"ns:topic:\x00\x00\x00\x01"
SPACE = Space.MESSAGES


def request(
    expected: bytes | None, head: bytes, *columns: bytes, clear: bool = False
) -> ChangeRequest:
    return ChangeRequest(
        SPACE, ROW, expected, {HEAD: head, **dict.fromkeys(columns, b"v")}, (), clear
    )


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "db", Options(), create=True, was_clean=False)


def test_a_change_sees_the_heads_of_earlier_changes_in_its_round(database: Database) -> None:
    round_ = Round(database, RecentHeads())
    assert round_.change(request(None, b"1"))
    assert not round_.change(request(None, b"1"))
    assert round_.change(request(b"1", b"2"))
    round_.put(SPACE, {ROW: b"3"})
    assert not round_.change(request(b"2", b"4"))
    assert round_.change(request(b"3", b"4"))
    round_.delete(SPACE, [ROW])
    assert round_.change(request(None, b"5"))
    assert database.get(head_key(SPACE, ROW)) is None
    round_.batch.write()
    assert database.get(head_key(SPACE, ROW)) == b"5"


def test_a_refused_change_adds_no_write(database: Database) -> None:
    round_ = Round(database, RecentHeads())
    assert not round_.change(request(b"another", b"1", b"e1"))
    assert round_.is_empty


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_cells_that_a_round_puts_are_cleared_only_in_the_next_round(
    database: Database, how: str
) -> None:
    def remove(round_: Round) -> None:
        if how == "clear":
            assert round_.change(request(b"1", b"2", b"e2", clear=True))
        else:
            round_.delete(SPACE, [b"other", ROW])

    recent = RecentHeads()
    round_ = Round(database, recent)
    assert round_.change(request(None, b"1", b"e1"))
    before = round_.batch.approximate_size()
    with pytest.raises(Postponed):
        remove(round_)
    assert round_.batch.approximate_size() == before
    round_.batch.write()
    round_.confirm()
    following = Round(database, recent)
    remove(following)
    following.batch.write()
    left = [key[len(cells_prefix(SPACE, ROW)) :] for key in database.keys_of(b"M")]
    assert left == ([b"e2"] if how == "clear" else [])


def test_a_recent_head_is_not_read_again(database: Database) -> None:
    recent = RecentHeads()
    round_ = Round(database, recent)
    assert round_.change(request(None, b"1"))
    assert recent.get(head_key(SPACE, ROW)) is None  # It is not on disk yet.
    round_.batch.write()
    round_.confirm()
    assert recent.get(head_key(SPACE, ROW)) == b"1"
    unread = Mock(spec=Database)
    assert Round(unread, recent).change(request(b"1", b"2"))
    unread.get.assert_not_called()


def test_recent_heads_do_not_keep_heads_of_an_index(database: Database) -> None:
    recent = RecentHeads()
    for put in (False, True):
        round_ = Round(database, recent)
        if put:
            round_.put(SPACE, {ROW: b"2"})
        else:
            assert round_.change(request(None, b"1"))
        round_.batch.write()
        round_.confirm()
        assert recent.get(head_key(SPACE, ROW)) == (None if put else b"1")


def test_recent_heads_have_limits() -> None:
    recent = RecentHeads(heads_max=2, bytes_max=10)
    for key in (b"a", b"b", b"a", b"c"):
        recent.remember(key, key)
    assert [recent.get(key) for key in (b"a", b"b", b"c")] == [b"a", None, b"c"]
    recent.remember(b"c", bytes(11))
    assert recent.get(b"c") is None
    recent.forget()
    assert recent.get(b"a") is None

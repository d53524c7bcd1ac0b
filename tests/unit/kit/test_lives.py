from broker.model import ROW_ID_MIN, row_id
from tests.kit.lives import Lives

IDS = [row_id(1000 + n, 0) + ROW_ID_MIN for n in range(4)]


def names(found):
    return [violation.name for violation in found]


def test_what_has_expired_must_not_be_shown():
    lives = Lives(100)
    assert lives.expired(IDS, 1100) == []
    assert names(lives.expired(IDS, 1102)) == ["expired_late", "expired_late"]


def test_what_was_shown_and_lives_must_be_shown_again():
    lives = Lives(100)
    lives.note(IDS)
    assert lives.removed(IDS[1:], 1101) == []
    assert names(lives.removed(IDS[1:], 1100)) == ["expired_early"]


def test_a_reader_may_be_behind():
    lives = Lives(100)
    lives.note(IDS)
    assert lives.removed(IDS[:2], 1050) == []
    assert lives.removed([], 1050) == []

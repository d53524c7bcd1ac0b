import re
from collections.abc import Iterator

import pytest

from broker import guards


@pytest.fixture(autouse=True)
def _all_hold_again() -> Iterator[None]:
    yield
    guards._off.clear()


def test_all_guards_hold_unless_switched_off() -> None:
    assert guards.switched_off() == frozenset()
    assert all(guards.holds(name) for name in guards.NAMES)


def test_outside_of_tests_no_guard_can_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKER_TESTING", raising=False)
    with pytest.raises(RuntimeError, match="BROKER_TESTING=1"):
        guards.switch_off("token")
    monkeypatch.setenv("BROKER_TESTING", "yes")
    with pytest.raises(RuntimeError, match="BROKER_TESTING=1"), guards.without("token"):
        pass
    assert guards.holds("token")


def test_a_guard_is_away_for_a_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")
    with guards.without("token"):
        assert not guards.holds("token")
        assert guards.holds("edits")
        assert guards.switched_off() == {"token"}
    assert guards.holds("token")


def test_a_process_is_told_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    guards.switch_off_named({})
    assert not guards.switched_off()
    with pytest.raises(RuntimeError, match="BROKER_TESTING=1"):
        guards.switch_off_named({guards.VARIABLE: "token"})
    monkeypatch.setenv("BROKER_TESTING", "1")
    guards.switch_off_named({guards.VARIABLE: "token, edits,"})
    assert guards.switched_off() == {"token", "edits"}
    with pytest.raises(ValueError, match="tokem"):
        guards.switch_off_named({guards.VARIABLE: "tokem"})


def test_a_guard_comes_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")
    with pytest.raises(KeyError), guards.without("token"):
        raise KeyError
    assert guards.holds("token")


def test_an_unknown_guard_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TESTING", "1")
    with pytest.raises(ValueError, match=re.escape("no guard is called 'tokn'")):
        guards.switch_off("tokn")

from typing import Any

from chaos.checkers import check
from chaos.history import Event, History, calls_of
from tests.kit.kill_broker import located

ROWS = [f"{number:020x}" for number in range(1, 5)]


def history(*rows: tuple[str, str]) -> list[Event]:
    """Return two publishes without ids, one with ids, and the final read of the log."""
    ticks = iter(range(100))
    recorded = History(lambda: next(ticks))
    asked: dict[str, Any] = {"pointer": None, "key": None, "generation": 1}
    for payloads, ids in ((["a"], ("", "")), (["b", "c"], ("", "")), (["d"], (ROWS[3], ROWS[3]))):
        ending = recorded.invoke("p", "publish", "t", {**asked, "payloads": payloads})
        ending.ok({"last": ids[1]}, ids[0])
    everything = {"after": "0" * 20, "through": "f" * 20, "generation": 1}
    ending = recorded.invoke("final", "read", "t", everything)
    shown = [[row, payload, None] for row, payload in rows]
    ending.ok({"rows": shown, "seen": ROWS[3], "floor": "", "pointer": ROWS[3]})
    return recorded.events


def names(events: list[Event]) -> set[str]:
    verdict = check(calls_of(events))
    assert verdict.is_known
    return verdict.names


def test_publishes_get_the_ids_at_which_they_were_read() -> None:
    events = located(history(*zip(ROWS, "abcd", strict=True)))
    publishes = [call for call in calls_of(events) if call.op == "publish"]
    assert [(call.id, call.told["last"]) for call in publishes] == [
        (ROWS[0], ROWS[0]),
        (ROWS[1], ROWS[2]),
        (ROWS[3], ROWS[3]),
    ]
    assert names(events) == set()


def test_a_missing_message_is_lost_or_torn() -> None:
    assert names(located(history(*zip(ROWS[1:], "bcd", strict=True)))) == {"lost_prefix"}
    without_c = [row for row in zip(ROWS, "abcd", strict=True) if row[1] != "c"]
    assert names(located(history(*without_c))) == {"lost_middle", "torn"}


def test_a_message_at_another_id_than_its_publish_got_is_found() -> None:
    assert "reordered" in names(located(history(*zip(ROWS, "bcad", strict=True))))
    twice = [*zip(ROWS, "abcd", strict=True), ("f" * 20, "a")]
    assert "duplicated" in names(located(history(*twice)))

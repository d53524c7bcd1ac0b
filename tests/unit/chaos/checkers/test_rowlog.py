"""The checker of rowlogs finds each violation, and no false one."""

from collections.abc import Iterable, Sequence

from chaos.checkers.rowlog import HistoryLine, overlaps, violations


def found(history: Iterable[HistoryLine], subscriptions: Sequence[str]) -> list[tuple[str, str]]:
    return [(each.name, each.detail) for each in violations(history, subscriptions)]


def seen(
    kind: str, time_ns: int, seq: int = 0, process: str = "one", *, done: bool = False
) -> HistoryLine:
    return HistoryLine(kind, process, time_ns, "row", seq, "" if kind == "put" else "a", done)  # type: ignore[arg-type]


GOOD = [
    seen("put", 1, 1),
    seen("put", 2, 2),
    seen("begin", 3, 1),
    seen("end", 4, 1),
    seen("begin", 5, 1),
    seen("end", 6, 1, done=True),
    seen("begin", 7, 2),
    seen("end", 8, 2, done=True),
]


def test_a_good_history_is_good() -> None:
    assert violations(GOOD, ["a"]) == []
    assert violations(reversed(GOOD), ["a"]) == []


def test_a_message_that_was_never_done_is_lost() -> None:
    assert found(GOOD[:-1], ["a"]) == [("row_lost", "a never got [2] of row")]
    assert found(GOOD, ["a", "b"]) == [("row_lost", "b never got [1, 2] of row")]


def test_two_messages_of_a_row_at_once_are_found_and_one_message_twice_is_not() -> None:
    both = [seen("begin", 9, 3), seen("begin", 10, 4, "two")]
    assert found([*GOOD, *both], ["a"]) == [("row_in_flight", "('a', 'row') 4 beside [3]")]
    twice = [seen("begin", 9, 3), seen("begin", 10, 3, "two")]
    assert violations([*GOOD, *twice], ["a"]) == []


def test_calls_in_flight_of_a_halted_process_do_not_count() -> None:
    halted = [seen("begin", 9, 3), HistoryLine("halted", "one", 10), seen("begin", 11, 4, "two")]
    assert violations([*GOOD, *halted], ["a"]) == []


def test_a_message_offered_before_an_earlier_one_is_found() -> None:
    late = [
        seen("put", 9, 3),
        seen("put", 10, 4),
        seen("begin", 11, 4),
        seen("end", 12, 4, done=True),
    ]
    assert found([*GOOD, *late], ["a"])[0] == ("row_order", "('a', 'row') 4 before [3]")


def test_two_processes_of_one_subscription_at_once_are_found() -> None:
    beside = [seen("begin", 9, 3), seen("begin", 10, 3, "two")]
    assert [each.detail for each in overlaps([*GOOD, *beside])] == ["a: two beside ['one']"]
    ended = [seen("begin", 9, 3), seen("end", 10, 3), seen("begin", 11, 3, "two")]
    halted = [seen("begin", 9, 3), HistoryLine("halted", "one", 10), seen("begin", 11, 3, "two")]
    for good in ([*GOOD, *ended], [*GOOD, *halted]):
        assert overlaps(good) == []

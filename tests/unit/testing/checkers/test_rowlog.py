"""The checker of rowlogs finds what is broken, and nothing else."""

from broker.testing.checkers.rowlog import Seen, violations


def seen(
    kind: str, time_ns: int, seq: int = 0, process: str = "one", *, done: bool = False
) -> Seen:
    return Seen(kind, process, time_ns, "row", seq, "" if kind == "put" else "a", done)  # type: ignore[arg-type]


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
    assert violations(GOOD[:-1], ["a"]) == ["lost: a never got [2] of row"]
    assert violations(GOOD, ["a", "b"]) == ["lost: b never got [1, 2] of row"]


def test_two_of_a_row_at_once_are_found_and_one_twice_is_none() -> None:
    both = [seen("begin", 9, 3), seen("begin", 10, 4, "two")]
    assert violations([*GOOD, *both], ["a"]) == ["in flight: ('a', 'row') 4 beside [3]"]
    twice = [seen("begin", 9, 3), seen("begin", 10, 3, "two")]
    assert violations([*GOOD, *twice], ["a"]) == []


def test_what_a_halted_process_had_in_flight_does_not_count() -> None:
    halted = [seen("begin", 9, 3), Seen("halted", "one", 10), seen("begin", 11, 4, "two")]
    assert violations([*GOOD, *halted], ["a"]) == []


def test_a_message_before_an_earlier_one_is_found() -> None:
    late = [
        seen("put", 9, 3),
        seen("put", 10, 4),
        seen("begin", 11, 4),
        seen("end", 12, 4, done=True),
    ]
    found = violations([*GOOD, *late], ["a"])
    assert found[0] == "order: ('a', 'row') 4 before [3]"
